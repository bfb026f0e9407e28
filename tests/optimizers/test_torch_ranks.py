# SPDX-License-Identifier: MIT
"""A model that two ranks share, over gloo: tests/gpu has the same over NCCL."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")

from torch_processes import largest_difference  # noqa: E402


def test_sharded_parameters_are_updated_as_whole_ones(tmp_path) -> None:
    """One rank has no element of the last layer, whose norm both take part in."""
    assert largest_difference(tmp_path, "cpu") < 1e-6
