# SPDX-License-Identifier: MIT
"""Every operator's kernels against its CPU provider, sample by sample, outputs poisoned first."""

from __future__ import annotations

import copy

import pytest
from runs import Run

from cupy_training_ops import get_op
from cupy_training_ops.frame import backends
from cupy_training_ops.plan import Launch
from cupy_training_ops.runtime.launch import launch_log
from cupy_training_ops.schema import Spec
from cupy_training_ops.testing.compare import assert_matches, poison
from cupy_training_ops.testing.samples import Sample, all_samples, flat, mapped_outputs

SAMPLES = [sample for samples in all_samples().values() for sample in samples]


def expected_outputs(op, inputs):
    """The CPU provider's answer. Works on copies: some write in place."""
    with backends.numpy_runs_on(backends.CPU):
        return op(*copy.deepcopy(inputs))


def poisoned_outputs(op, inputs, expected, run: Run, offset: int) -> tuple[object, ...]:
    """Memory for the outputs; None for those that a caller does not give."""
    if op.no_out:
        return (None,)
    make = lambda x: poison(run.blank(Spec(x.shape, x.dtype), offset))  # noqa: E731
    return mapped_outputs(op, inputs, expected, make)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.id)
def test_kernel_matches_cpu_provider(sample: Sample, run, rng) -> None:
    op = get_op(sample.op)(**sample.attributes)
    inputs = sample.make(rng)
    expected = expected_outputs(op, inputs)
    out = poisoned_outputs(op, inputs, expected, run, sample.offset_of_out)
    with launch_log() as log:
        result = op(*run.place_inputs(op, inputs, sample.offset), out=out)
    for actual, wanted in zip(flat(result), flat(expected), strict=True):
        if wanted is None:
            assert actual is None
            continue
        pair = sample.compared(run.host(actual)), sample.compared(wanted)
        assert_matches(*pair, sample.tolerance(op, wanted.dtype))
    assert bool(log) == any(array is not None and array.size for array in flat(out))
    own = (op.function_name, f"{op.family}__")  # or a stage that the family shares
    assert all(step.symbol.startswith(own) for step in log if isinstance(step, Launch))
