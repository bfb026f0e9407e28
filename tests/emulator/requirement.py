# SPDX-License-Identifier: MIT
"""What a test does where kernels cannot run."""

import os

import pytest

from .toolchain import unavailable_reason


def require_emulator() -> None:
    """Skip the running test where kernels cannot run; in CI (CI=true) fail it."""
    reason = unavailable_reason()
    if reason is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
