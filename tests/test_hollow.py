# SPDX-License-Identifier: MIT
"""The way to a launch on CuPy's own arrays, without a GPU: addresses are made up, launches noted.

What the emulator cannot show: its arrays are NumPy's, on the device and on the host alike.
"""

from __future__ import annotations

import numpy as np
import pytest

from cupy_training_ops import get_op
from cupy_training_ops.frame.op import ViewOp
from cupy_training_ops.testing.samples import Sample, all_samples, mapped_inputs

cupy = pytest.importorskip("cupy", reason="CuPy is in the extras")

from cupy_training_ops.testing.hollow import hollow, hollow_launches  # noqa: E402

SAMPLES = [sample for samples in all_samples().values() for sample in samples]


@pytest.fixture
def launches():
    """What is launched from here on, CuPy's arrays being hollow ones."""
    with hollow_launches() as found:
        yield found


def inputs_of(op, values, offset: int) -> list:
    return mapped_inputs(
        op, values, lambda x: None if x is None else hollow(x.shape, x.dtype, offset)
    )


def as_tuple(result) -> tuple:
    return result if isinstance(result, tuple) else (result,)


def assert_like(results, expected) -> None:
    """Arrays in the same places, of the same shapes and dtypes; those of the host are NumPy's."""
    for result, wanted in zip(results, expected, strict=True):
        assert (result is None) == (wanted is None)
        if wanted is not None:
            assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.id)
def test_every_call_reaches_its_launches(sample: Sample, launches, rng) -> None:
    """With new outputs; then with outputs and a workspace of the caller's."""
    op, values = get_op(sample.op)(**sample.attributes), sample.make(rng)
    expected = as_tuple(op(*values))
    inputs = inputs_of(op, values, sample.offset)
    results = as_tuple(op(*inputs))
    assert_like(results, expected)
    if isinstance(op, ViewOp):
        assert not launches
        return
    out = tuple(hollow(r.shape, r.dtype) if isinstance(r, cupy.ndarray) else None for r in results)
    workspace = hollow((op.workspace_nbytes(*inputs),), np.uint8)
    launches.clear()
    given = as_tuple(op(*inputs, out=out, workspace=workspace))
    assert_like(given, expected)
    assert all(a is b for a, b in zip(given, out, strict=True) if b is not None)
    assert bool(launches) == any(array is not None and array.size for array in out)
