# SPDX-License-Identifier: MIT
"""Every operator's kernels against its CPU provider, sample by sample, outputs poisoned first."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from runs import drawn_samples
from sequences import assert_results_match, expected_outputs, poisoned_outputs

from cupy_training_ops import ArgumentError, get_op
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.plan import Launch
from cupy_training_ops.samples import Sample
from cupy_training_ops.testing.samples import all_samples, flat, mapped_inputs

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


def extents_of(op: Any, inputs: Any) -> list[int]:
    """The extents of the inputs' arrays, each once."""
    extents: set[int] = set()
    mapped_inputs(op, inputs, lambda x: extents.update(getattr(x, "shape", ())))
    return sorted(extents - {0})


def without(op: Any, inputs: Any, extent: int) -> Any:
    """Return inputs of which each axis of this extent has none."""

    def cut(x: Any) -> Any:
        if not isinstance(x, np.ndarray):
            return x
        return np.array(x[(*(slice(0 if n == extent else None) for n in x.shape), ...)])

    return mapped_inputs(op, inputs, cut)


@pytest.mark.parametrize("name", sorted(name for name, samples in all_samples().items() if samples))
def test_axes_without_elements(name: str, run, rng, seed) -> None:
    """On a GPU arrays without elements have null addresses, in emulated launches, too."""
    samples = [sample for sample in all_samples()[name] if sample.id in drawn_samples(seed)]
    sample = samples[rng.integers(len(samples))]
    op = get_op(sample.op)(**sample.attributes)
    inputs = sample.make(rng)
    extents = extents_of(op, inputs) or [1]
    inputs = without(op, inputs, extents[rng.integers(len(extents))])
    try:
        expected = expected_outputs(op, inputs)
    except ArgumentError as refused:
        with pytest.raises(ArgumentError, match=re.escape(str(refused))):
            op(*run.place_inputs(op, inputs, sample.offset))
        return
    out = poisoned_outputs(op, inputs, expected, run, sample.offset_of_out)
    result = op(*run.place_inputs(op, inputs, sample.offset), out=out)
    assert_results_match(op, sample, run, inputs, result, expected)
