# SPDX-License-Identifier: MIT
"""The way to a launch on CuPy's own arrays, without a GPU: addresses are made up, launches noted.

What the emulator cannot show: its arrays are NumPy's, on the device and on the host alike.
"""

from __future__ import annotations

import contextlib
import itertools
import math

import numpy as np
import pytest

from cupy_training_ops import get_op
from cupy_training_ops.frame import backends
from cupy_training_ops.frame.op import ViewOp
from cupy_training_ops.plan import Device
from cupy_training_ops.testing.samples import Sample, all_samples, mapped_inputs

cupy = pytest.importorskip("cupy", reason="CuPy is in the extras")

from cupy_training_ops.runtime.cuda import CudaBackend  # noqa: E402

SAMPLES = [sample for samples in all_samples().values() for sample in samples]
ALIGNMENT = 512
addresses = itertools.count(2**40, 2**36)


def hollow(shape, dtype, offset: int = 0):
    """A CuPy array of memory that is not there."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = cupy.cuda.UnownedMemory(next(addresses), nbytes + ALIGNMENT, None, 0)
    start = cupy.cuda.MemoryPointer(memory, offset * np.dtype(dtype).itemsize)
    return cupy.ndarray(shape, dtype, start)


class Module:
    """Kernels that note that they were launched, and with which arguments."""

    def __init__(self, launches: list) -> None:
        self.launches = launches

    def get_function(self, name: str):
        def launch(_grid, _block, arguments, _shared) -> None:
            self.launches.append((name, arguments))

        return launch


class HollowBackend(CudaBackend):
    def __init__(self) -> None:
        self.launches: list = []

    def empty(self, spec, device):
        return hollow(spec.shape, spec.dtype)

    def zeros(self, nbytes, device):
        return hollow((nbytes,), np.uint8)

    def device(self, index):
        return Device(132, (9, 0))

    def is_current(self, device):
        return True

    def on(self, device):
        return contextlib.nullcontext()

    def stream(self, device):
        return 0

    def capturing(self, device):
        return False

    def load(self, source, options):
        return Module(self.launches)


HOLLOW = HollowBackend()


@pytest.fixture
def launches(monkeypatch) -> list:
    """What is launched from here on, CuPy's arrays being hollow ones."""
    monkeypatch.setitem(backends.BACKENDS, cupy.ndarray, HOLLOW)
    HOLLOW.launches.clear()
    return HOLLOW.launches


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
