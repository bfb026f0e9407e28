# SPDX-License-Identifier: MIT
"""Every operator's kernels against its CPU provider, sample by sample, outputs poisoned first."""

from __future__ import annotations

import pytest
from sequences import assert_results_match, expected_outputs, poisoned_outputs

from cupy_training_ops import get_op
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.plan import Launch
from cupy_training_ops.samples import Sample
from cupy_training_ops.testing.samples import all_samples, flat

SAMPLES = [sample for samples in all_samples().values() for sample in samples]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.id)
def test_kernel_matches_cpu_provider(sample: Sample, run, rng) -> None:
    op = get_op(sample.op)(**sample.attributes)
    inputs = sample.make(rng)
    expected = expected_outputs(op, inputs)
    out = poisoned_outputs(op, inputs, expected, run, sample.offset_of_out)
    with launch_log() as log:
        result = op(*run.place_inputs(op, inputs, sample.offset), out=out)
    assert_results_match(op, sample, run, inputs, result, expected)
    assert bool(log) == any(array is not None and array.size for array in flat(out))
    own = (op.function_name, f"{op.family}__")  # or a stage that the family shares
    assert all(step.symbol.startswith(own) for step in log if isinstance(step, Launch))


def arrays_apart(name: str) -> int:
    """How many outputs there are that are neither lists nor an input's array."""
    outputs = get_op(name).outputs
    return 0 if any(o.variadic for o in outputs) else sum(o.aliases is None for o in outputs)


@pytest.mark.parametrize(
    "sample", [s for s in SAMPLES if arrays_apart(s.op) > 1], ids=lambda sample: sample.id
)
def test_each_output_alone_is_what_it_is_beside_others(sample: Sample, run, rng) -> None:
    """What is not asked for is no array, which a kernel must not write to."""
    op = get_op(sample.op)(**sample.attributes)
    inputs = sample.make(rng)
    expected = expected_outputs(op, inputs)
    for place, output in enumerate(op.outputs):
        if output.aliases is None and expected[place] is not None:
            actual = op(*run.place_inputs(op, inputs, sample.offset), outputs=(output.name,))
            alone = [None] * len(expected)
            alone[place] = expected[place]
            assert_results_match(op, sample, run, inputs, actual, tuple(alone))
