# SPDX-License-Identifier: MIT
"""Gradients of parameters that are made in their buffers, where nothing has been added there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from .kinds import Run
from .memory import Step

ACCUMULATOR = "InPlaceAccumulatorV2"


class _Target(NamedTuple):
    """Which output of a step is a buffer's gradient, and where the step has buffer and flag."""

    output: int
    buffer: int
    flag: int
    like: int  # the input that has the output's type


def directly(steps: Sequence[Step], kept: Collection[int]) -> list[Step]:
    """The steps with what makes a gradient writing it where the accumulator would copy it."""
    reads = Counter(slot for step in steps for slot in step.inputs)
    makers = {slot: i for i, step in enumerate(steps) for slot in step.outputs}
    found = list(steps)
    for i, step in enumerate(steps):
        if step.node.op_type != ACCUMULATOR or len(step.inputs) != 3 or not step.known:
            continue
        buffer, value, flag = step.inputs
        m = makers.get(value)
        if m is None or reads[value] != 1 or reads[buffer] != 1 or value in kept or flag in makers:
            continue
        maker = _made_there(found[m], value, buffer, flag)
        if maker is not None:
            found[m] = maker
            found[i] = step._replace(run=_Accumulator(step.run))
    return found


def _made_there(step: Step, value: int, buffer: int, flag: int) -> Step | None:
    """The step with one more output that it may write into a buffer."""
    k = step.outputs.index(value)
    like = _like(step, k)
    if like is None:
        return None
    n = len(step.inputs)
    target = _Target(k, n, n + 1, like)
    own = step.run if isinstance(step.run, _Direct) else _Direct(step.run, n)
    inputs = (*step.inputs, buffer, flag)
    return step._replace(run=own.with_target(target), inputs=inputs)


def _like(step: Step, k: int) -> int | None:
    """The input whose type an output has; None where it cannot be written into an array."""
    known = step.known
    if known is None or known.overwrites or k in known.views:
        return None
    if known.op is None:
        return 0 if step.node.op_type == "Gemm" else None
    op = known.op
    has_lists = any(i.variadic for i in op.inputs) or any(o.variadic for o in op.outputs)
    if has_lists or k >= len(op.outputs):
        return None
    types = [(item.type, item.memory) for item in op.inputs]
    wanted = op.outputs[k].type, "device"
    return types.index(wanted) if op.outputs[k].memory == "device" and wanted in types else None


class _Direct:
    """A run whose outputs may be buffers."""

    def __init__(self, run: Run, n_inputs: int, targets: tuple[_Target, ...] = ()) -> None:
        self._run, self._n, self._targets = run, n_inputs, targets

    def with_target(self, target: _Target) -> _Direct:
        """The same with one more."""
        return _Direct(self._run, self._n, (*self._targets, target))

    def __call__(self, values: list[Any]) -> Sequence[Any]:
        own = values[: self._n]
        outs = {
            t.output: values[t.buffer]
            for t in self._targets
            if values[t.flag].all() and values[t.like].dtype == values[t.buffer].dtype
        }
        return self._run(own, out=outs) if outs else self._run(own)


class _Accumulator:
    """The run of an accumulator, whose value may be in the buffer already."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(self, values: list[Any]) -> Sequence[Any]:
        buffer, value, _ = values
        return (np.ones(1, bool), buffer) if value is buffer else self._run(values)
