# SPDX-License-Identifier: MIT
"""Every operator's kernels against its CPU provider, sample by sample, outputs poisoned first."""

from __future__ import annotations

import numpy as np
import pytest

from cupy_training_ops import get_op
from cupy_training_ops.contract import Spec
from cupy_training_ops.runtime.launch import launch_log
from cupy_training_ops.testing.compare import assert_matches, poison
from cupy_training_ops.testing.samples import Sample, all_samples

# Operators whose floating-point results are bit patterns, not sums: no tolerance.
EXACT = ("gist",)
SAMPLES = [sample for samples in all_samples().values() for sample in samples]


def expected_outputs(op, inputs) -> tuple[np.ndarray, ...]:
    """The CPU provider's answer: always as a tuple."""
    result = op.cpu_function()(*inputs, **op.attribute_values)
    return (result,) if isinstance(result, np.ndarray) else tuple(result)


def spec_of(array: np.ndarray) -> Spec:
    return Spec(array.shape, array.dtype)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.id)
def test_kernel_matches_cpu_provider(sample: Sample, run, rng) -> None:
    op = get_op(sample.op)(**sample.attributes)
    inputs = sample.make(rng)
    expected = expected_outputs(op, inputs)
    out = tuple(poison(run.blank(spec_of(e), sample.offset)) for e in expected)
    with launch_log() as log:
        result = op(*(run.place(value, sample.offset) for value in inputs), out=out)
    results = result if isinstance(result, tuple) else (result,)
    for actual, wanted in zip(results, expected, strict=True):
        assert_matches(run.host(actual), wanted, 0 if op.stem in EXACT else None)
    assert bool(log) == any(array.size for array in expected)
    assert all(launch.symbol.startswith(op.function_name) for launch in log)
