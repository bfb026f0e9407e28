# SPDX-License-Identifier: MIT
"""No call changes another: all samples of an operator through the same instances, in any order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from runs import Run, drawn_run, drawn_samples
from sequences import assert_call_matches, in_turns, shared_instance

from cupy_training_ops import get_op
from cupy_training_ops.call.op import Op
from cupy_training_ops.registry import FAMILIES
from cupy_training_ops.samples import Sample
from cupy_training_ops.testing.samples import all_samples, sampled_operators

TIMES = 2
MOST_DRAWN = 3  # operators of a family: one, and another for each four that there are
MOST = 2**18  # elements of an input in the default tier, where longer samples are called once


def by_instance(sample: Sample, instances: dict[str, Op]) -> tuple[Op, None]:
    """An instance for all samples with its attributes."""
    name = repr(sorted(sample.attributes.items(), key=str))
    if name not in instances:
        instances[name] = get_op(sample.op)(**sample.attributes)
    return instances[name], None


def by_function(sample: Sample, _: dict[str, Op]) -> tuple[Op, Callable[..., Any]]:
    """The operator's function, and the instance that it has."""
    return shared_instance(sample)


WAYS = (by_instance, by_function)


def call_all(
    samples: list[Sample], run: Run, rng: np.random.Generator, seed: int, ways=WAYS
) -> int:
    """Samples in turns, in each of these ways; the number of calls."""
    instances: dict[str, Op] = {}
    turns = in_turns(samples, seed, TIMES)
    for sample, way in itertools.product(turns, ways):
        op, function = way(sample, instances)
        assert_call_matches(op, sample, run, rng, function)
    return len(ways) * len(turns)


def drawn_operators(draw: random.Random) -> list[str]:
    """Of each family some that have samples."""
    results: list[str] = []
    for operators in FAMILIES.values():
        names = [name for name in operators if name in sampled_operators()]
        results += draw.sample(names, min(1 + len(names) // 4, MOST_DRAWN, len(names)))
    return results


def is_short(sample: Sample) -> bool:
    values = sample.make(np.random.default_rng(0))
    parts = (x for value in values for x in (value if isinstance(value, list) else [value]))
    return all(np.size(part) <= MOST for part in parts)


def test_calls_of_drawn_operators_leave_nothing_for_others(rng, seed) -> None:
    draw, drawn = random.Random(f"{seed} sequences"), drawn_samples(seed)
    for name in drawn_operators(draw):
        samples = [s for s in all_samples()[name] if s.id in drawn and is_short(s)]
        with Run(drawn_run(name, seed), seed) as run:
            assert call_all(samples, run, rng, seed, [draw.choice(WAYS)])


@pytest.mark.thorough
@pytest.mark.parametrize("name", sampled_operators())
def test_calls_leave_nothing_for_others(rng, seed, name) -> None:
    with Run(drawn_run(name, seed), seed) as run:
        assert call_all(list(all_samples()[name]), run, rng, seed)


@pytest.mark.gpu
@pytest.mark.parametrize("name", sampled_operators())
def test_calls_on_a_gpu_leave_nothing_for_others(rng, seed, name) -> None:
    with Run("cuda", seed) as run:
        assert call_all(list(all_samples()[name]), run, rng, seed)
