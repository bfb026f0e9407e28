# SPDX-License-Identifier: MIT
"""Calls one after another through the same instances, each compared with the CPU provider."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from runs import Run

import cupy_training_ops as cto
from cupy_training_ops.call import backends
from cupy_training_ops.call.op import Op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.registry import get_op
from cupy_training_ops.samples import Sample
from cupy_training_ops.testing.compare import assert_matches, poison
from cupy_training_ops.testing.samples import flat, mapped_outputs, tolerance


def expected_outputs(op: Op, inputs: Sequence[Any]) -> Any:
    """The CPU provider's answer. Works on copies: some write in place."""
    with backends.numpy_runs_on(backends.CPU):
        return type(op)(**op.attribute_values)(*copy.deepcopy(inputs))


def poisoned_outputs(op: Op, inputs: Any, expected: Any, run: Run, offset: int) -> tuple[Any, ...]:
    """Memory for the outputs; None for those that a caller does not give."""
    if op.no_out:
        return (None,)
    make = lambda x: poison(run.blank(Spec(x.shape, x.dtype), offset))  # noqa: E731
    return mapped_outputs(op, inputs, expected, make)


def assert_results_match(
    op: Op, sample: Sample, run: Run, inputs: Sequence[Any], result: Any, expected: Any
) -> None:
    """What a sample's call gave, and what the CPU provider gives, within its tolerance."""
    computed = flat(result)
    slacks = sample.slacks(inputs, len(computed))
    for actual, wanted, slack in zip(computed, flat(expected), slacks, strict=True):
        if wanted is None:
            assert actual is None
            continue
        pair = sample.comparable(run.host(actual)), sample.comparable(wanted)
        assert_matches(*pair, tolerance(sample, op, wanted.dtype), slack)


def assert_zeros(op: Op) -> None:
    """A call has left zero what the next one expects so, also where only a larger one looks."""
    assert op.workspaces.count_left() == 0, f"{op.name} leaves zeros that are not"


def assert_call_matches(
    op: Op,
    sample: Sample,
    run: Run,
    rng: np.random.Generator,
    call: Callable[..., Any] | None = None,
) -> Any:
    """A call with a sample's inputs gives what the CPU provider does, whatever calls were before.

    op: the instance that the call goes through, whose scratch memory is poisoned first; by a
    `call` of its own, such as the operator's function.
    """
    inputs = sample.make(rng)
    expected = expected_outputs(op, inputs)
    out = poisoned_outputs(op, inputs, expected, run, sample.offset_of_out)
    op.workspaces.poison()
    result = (call or op)(*run.place_inputs(op, inputs, sample.offset), out=out)
    assert_zeros(op)
    assert_results_match(op, sample, run, inputs, result, expected)
    assert op.workspaces.count_left() == 0
    return out


def in_turns(samples: Sequence[Sample], seed: int, times: int) -> list[Sample]:
    """Each so many times, shuffled."""
    order = [sample for sample in samples for _ in range(times)]
    random.Random(f"{seed} {samples[0].op}").shuffle(order)
    return order


def shared_instance(sample: Sample) -> tuple[Op, Callable[..., Any]]:
    """The instance that an operator's function has for these attributes, and the function."""
    cls = get_op(sample.op)
    op = cls.shared(**sample.attributes)
    function = getattr(cto, cls.function_name)
    return op, lambda *inputs, **keywords: function(*inputs, **sample.attributes, **keywords)
