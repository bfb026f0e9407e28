# SPDX-License-Identifier: MIT
"""No call changes another: all samples of an operator through the same instances, in any order."""

from __future__ import annotations

import random

import numpy as np
import pytest
from runs import Run, drawn_run, drawn_samples
from sequences import assert_call_matches, in_turns, shared_instance

from cupy_training_ops import get_op
from cupy_training_ops.frame.op import Op
from cupy_training_ops.samples import Sample
from cupy_training_ops.testing.samples import all_samples, sampled

SHARE = 0.15  # of the operators, by default on emulated kernels
TIMES = 2


def call_all(samples: list[Sample], run: Run, rng: np.random.Generator, seed: int) -> int:
    """Samples in turns, each by an instance for all of its attributes and by its function."""
    instances: dict[str, Op] = {}
    turns = in_turns(samples, seed, TIMES)
    for sample in turns:
        name = repr(sorted(sample.attributes.items(), key=str))
        if name not in instances:
            instances[name] = get_op(sample.op)(**sample.attributes)
        assert_call_matches(instances[name], sample, run, rng)
        op, function = shared_instance(sample)
        assert_call_matches(op, sample, run, rng, function)
    return 2 * len(turns)


def is_drawn(name: str, seed: int) -> bool:
    return random.Random(f"{seed} sequences of {name}").random() < SHARE


def test_calls_of_drawn_operators_leave_nothing_for_others(rng, seed) -> None:
    calls, drawn = 0, drawn_samples(seed)
    for name in filter(lambda name: is_drawn(name, seed), sampled()):
        samples = [sample for sample in all_samples()[name] if sample.id in drawn]
        with Run(drawn_run(name, seed), seed) as run:
            calls += call_all(samples, run, rng, seed)
    assert calls > 0


@pytest.mark.thorough
@pytest.mark.parametrize("name", sampled())
def test_calls_leave_nothing_for_others(rng, seed, name) -> None:
    with Run(drawn_run(name, seed), seed) as run:
        assert call_all(list(all_samples()[name]), run, rng, seed)


@pytest.mark.gpu
@pytest.mark.parametrize("name", sampled())
def test_calls_on_a_gpu_leave_nothing_for_others(rng, seed, name) -> None:
    with Run("cuda", seed) as run:
        assert call_all(list(all_samples()[name]), run, rng, seed)
