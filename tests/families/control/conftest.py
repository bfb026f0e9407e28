# SPDX-License-Identifier: MIT
"""Fixtures of the tests of control."""

from __future__ import annotations

import pytest

from cupy_training_ops.device import streams
from cupy_training_ops.families.control import operators as control


@pytest.fixture(autouse=True)
def table(monkeypatch) -> streams.Events:
    """Events of its own for each test."""
    result = streams.Events()
    monkeypatch.setattr(control, "EVENTS", result)
    return result


@pytest.fixture(params=["numpy", "cupy"])
def place(request):
    """Makes arrays like NumPy's: the same, or CuPy's without memory."""
    if request.param == "numpy":
        yield lambda array: array
        return
    pytest.importorskip("cupy", reason="CuPy is in the extras")
    from cupy_training_ops.testing.hollow import hollow, hollow_launches

    with hollow_launches():
        yield lambda array: hollow(array.shape, array.dtype)
