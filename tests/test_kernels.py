# SPDX-License-Identifier: MIT
"""Every operator's kernels against its CPU provider, sample by sample, outputs poisoned first."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from runs import Run

from cupy_training_ops import get_op
from cupy_training_ops.frame import backends
from cupy_training_ops.frame.op import ViewOp
from cupy_training_ops.runtime.launch import launch_log
from cupy_training_ops.schema import Spec
from cupy_training_ops.testing.compare import assert_matches, poison
from cupy_training_ops.testing.samples import Sample, all_samples

SAMPLES = [sample for samples in all_samples().values() for sample in samples]


def expected_outputs(op, inputs) -> tuple[np.ndarray, ...]:
    """The CPU provider's answer: always as a tuple. Works on copies: some write in place."""
    with backends.numpy_runs_on(backends.CPU):
        result = op(*copy.deepcopy(inputs))
    return result if isinstance(result, tuple) else (result,)


def poisoned_outputs(op, expected, run: Run, offset: int) -> tuple[object, ...]:
    """Memory for the outputs; None for those that a caller does not give."""
    declared = op.outputs * len(expected) if op.outputs[0].variadic else op.outputs
    return tuple(
        None
        if isinstance(op, ViewOp) or output.memory == "host" or array is None
        else poison(run.blank(Spec(array.shape, array.dtype), offset))
        for output, array in zip(declared, expected, strict=True)
    )


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.id)
def test_kernel_matches_cpu_provider(sample: Sample, run, rng) -> None:
    op = get_op(sample.op)(**sample.attributes)
    inputs = sample.make(rng)
    expected = expected_outputs(op, inputs)
    out = poisoned_outputs(op, expected, run, sample.offset_of_out)
    with launch_log() as log:
        result = op(*run.place_inputs(op, inputs, sample.offset), out=out)
    results = result if isinstance(result, tuple) else (result,)
    for actual, wanted in zip(results, expected, strict=True):
        if wanted is None:
            assert actual is None
            continue
        assert_matches(run.host(actual), wanted, 0 if op.bitwise_exact else None)
    assert bool(log) == any(array is not None and array.size for array in out)
    own = (op.function_name, f"{op.family}__")  # or a stage that the family shares
    assert all(launch.symbol.startswith(own) for launch in log)
