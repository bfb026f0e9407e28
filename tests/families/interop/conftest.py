# SPDX-License-Identifier: MIT
"""Fixtures of the tests of interop."""

from __future__ import annotations

import pytest

import cupy_training_ops as cto


@pytest.fixture(params=["numpy", "cupy"])
def place(request):
    """Makes arrays like NumPy's: the same, or CuPy's without memory."""
    if request.param == "numpy":
        yield lambda array: array.copy()
        return
    pytest.importorskip("cupy", reason="CuPy is in the extras")
    from cupy_training_ops.testing.hollow import hollow, hollow_launches

    with hollow_launches():
        yield lambda array: hollow(array.shape, array.dtype)


@pytest.fixture
def registered():
    """Registers a function under a name for the test."""
    from cupy_training_ops.callables import functions

    before = dict(functions._python_ops), dict(functions._triton_ops)
    yield cto.register_python_op
    for table, entries in zip((functions._python_ops, functions._triton_ops), before, strict=True):
        table.clear()
        table.update(entries)
