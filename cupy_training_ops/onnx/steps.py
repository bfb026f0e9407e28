# SPDX-License-Identifier: MIT
"""The steps of a program: when their values are freed, and which write their results in place.

y = relu(x); z = add(y, b)      y dies at the add, whose result is written over it
g = gemm(...); buffer += g      where the sums begin anew, gemm writes into the buffer itself
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..errors import ArgumentError, OpError, raise_if_from_handler
from .graph import Node, may_repeat_to
from .runner import Run, Runner, has_lists

UNUSED = 1  # the slot of outputs that nobody wants
ACCUMULATOR = "InPlaceAccumulatorV2"


class Step(NamedTuple):
    """A call of `run` on a list of values, which are at these slots (indices) of a program's.

    run(inputs) returns the outputs, which go to the slots `outputs`. dead: slots to set to None
    afterwards, as no later step reads them.
    """

    run: Run
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dead: tuple[int, ...]
    node: Node
    runner: Runner | None = None  # None of a copy between host and device


def run_step(step: Step, values: list[Any]) -> None:
    """Compute a step's outputs in `values`, indexed by slot, and set its dead slots to None.

    Errors name the node.
    """
    run, inputs, outputs, dead, node, _ = step
    try:
        results = run(list(map(values.__getitem__, inputs)))
    except Exception as error:
        raise_named(error, node)
    for slot, result in zip(outputs, results, strict=False):
        values[slot] = result
    for k, slot in enumerate(outputs):
        if values[slot] is None and slot not in dead:
            raise ArgumentError(f"{node.title}: its output {k} is not computed here")
    for slot in dead:
        values[slot] = None


def raise_named(error: Exception, node: Node) -> NoReturn:
    """Raise an error of a node's computation with the node's name, if it is no signal handler's.

    Running out of memory is no fault of the node.
    """
    raise_if_from_handler(error)
    if isinstance(error, MemoryError):
        raise error
    if isinstance(error, OpError):
        raise type(error)(f"{node.title}: {error}") from None
    raise ArgumentError(f"{node.title}: {error}") from error


def with_dead_slots(steps: Sequence[Step], lasting: set[int]) -> list[Step]:
    """Return the steps with `dead` filled in; the slots `lasting` never die."""
    needed = set(lasting)
    result = []
    for step in reversed(steps):
        dead = tuple(dict.fromkeys(s for s in (*step.inputs, *step.outputs) if s not in needed))
        needed.update(dead)
        needed.discard(UNUSED)
        result.append(step._replace(dead=dead))
    return result[::-1]


# ---- results over dead inputs --------------------------------------------------------------------


def in_place(steps: Sequence[Step], lasting: set[int]) -> list[Step]:
    """Return the steps, with results written over an input where nothing needs that any more.

    The input's memory was allocated for another step's output, not fed, and no view of it is read
    later. lasting: slots whose values outlive the run.
    """
    owner = _owners(steps)
    # What these read or make may be in other values too, so that it is not written over.
    passing = [step for step in steps if step.runner and step.runner.keeps]
    lasting = lasting.union(*((*step.inputs, *step.outputs) for step in passing))
    last = _last_uses(steps, owner, lasting)
    new = {slot for step in steps if step.runner for slot in step.outputs}
    result = []
    for i, step in enumerate(steps):
        places = []
        for k in step.runner.overwrites if step.runner else ():
            slot = step.inputs[k] if k < len(step.inputs) else UNUSED
            shares = sum(owner.get(s, s) == slot for s in step.inputs)  # inputs in this memory
            # A step made it, it is no view, this is its last use, and no other input is a view.
            if slot in new and owner.get(slot, slot) == slot and last[slot] == i and shares == 1:
                places.append(k)
        result.append(step._replace(run=_over(step, places)) if places else step)
    return result


def aliases_of(steps: Sequence[Step], slots: set[int], owners: set[int]) -> frozenset[int]:
    """Return those of `slots` whose values may have memory of `owners`.

    They are views of it, or a step passes it on, as into a sequence.
    """
    reached = set(owners)
    for step in steps:
        for k, slot in enumerate(step.outputs):
            if not reached.isdisjoint(_sources(step, k)):
                reached.add(slot)
    return frozenset(slots & reached)


def written_slots(steps: Sequence[Step]) -> set[int]:
    """Return the slots that steps update in place, and those whose memory these may have."""
    written: set[int] = set()
    for step in reversed(steps):
        updates = step.runner.updates if step.runner else ()
        written.update(step.inputs[k] for k in updates if k < len(step.inputs))
        for k, slot in enumerate(step.outputs):
            if slot in written:
                written.update(_sources(step, k))
    return written


def _sources(step: Step, k: int) -> tuple[int, ...]:
    """Return the slots of inputs whose memory a step's output k may have."""
    if step.runner is not None and step.runner.keeps:
        return step.inputs
    views = _views(step)
    return step.inputs[views[k] :][:1] if k in views else ()


def _owners(steps: Sequence[Step]) -> Mapping[int, int]:
    """Return {slot that may be a view: slot whose memory it has, itself no view}."""
    owner: dict[int, int] = {}
    for step in steps:
        views = _views(step)
        for k, slot in enumerate(step.outputs):
            if k in views and views[k] < len(step.inputs):
                source = step.inputs[views[k]]
                owner[slot] = owner.get(source, source)
    return owner


def _views(step: Step) -> Mapping[int, int]:
    """Return {index of an output: index of the input whose memory it may have}."""
    return step.runner.views if step.runner else {0: 0}  # a host array's copy may be itself


def _last_uses(
    steps: Sequence[Step], owner: Mapping[int, int], lasting: set[int]
) -> dict[int, int]:
    """Return {slot that is no view: index of the last step that uses its memory}.

    owner: {slot that may be a view: slot whose memory it has}. For the slots `lasting` that is the
    number of steps, one more than any index.
    """
    last: dict[int, int] = {}
    for i, step in enumerate(steps):
        for slot in (*step.inputs, *step.outputs):
            last[owner.get(slot, slot)] = i
    return last | {owner.get(slot, slot): len(steps) for slot in lasting}


def _over(step: Step, places: Sequence[int]) -> Run:
    """Return a step's run that writes its first result over one of the inputs `places`."""
    assert step.runner is not None
    if step.runner.op is not None:  # the result is as large as any of them
        return partial(_over_one, step.run, places[0])
    return partial(_over_largest, step.run, places)


def _over_one(run: Run, place: int, values: list[Any]) -> Sequence[Any]:
    value = values[place]
    return run(values, out={0: value}) if value.flags.c_contiguous else run(values)


def _over_largest(run: Run, places: Sequence[int], values: list[Any]) -> Sequence[Any]:
    """Return run(values), its result in the first input of `places` of its shape and type.

    That is one to which all inputs broadcast, where all have one type. Most often all have one
    shape, which is looked at first.
    """
    shape, dtype = values[0].shape, values[0].dtype
    for value in values:
        if value.shape != shape or value.dtype != dtype:
            break
    else:
        return run(values, out={0: values[places[0]]})
    shapes = {value.shape for value in values}
    types = {value.dtype for value in values}
    for k in places:
        if len(types) == 1 and all(may_repeat_to(shape, values[k].shape) for shape in shapes):
            return run(values, out={0: values[k]})
    return run(values)


# ---- gradients in their accumulators' buffers ----------------------------------------------------


class _Target(NamedTuple):
    """A step's output that may be written into a gradient's buffer; all are indices.

    output: of the step's outputs. buffer, flag, like: of its inputs; flag is True where the buffer
    is to be overwritten, like has the output's type.
    """

    output: int
    buffer: int
    flag: int
    like: int


def with_gradients_in_place(steps: Sequence[Step], lasting: Collection[int]) -> list[Step]:
    """Return the steps, with gradients computed in their accumulator's buffer where that restarts.

    InPlaceAccumulatorV2(buffer, value, flag) copies value to buffer where flag is set, else adds
    it. The step that makes the value gets buffer and flag as two more inputs, and writes the buffer
    itself if the flag is set. This needs a value and a buffer with no other reader, a value not in
    the slots `lasting` (outputs), and a flag that is known before.
    """
    reads = Counter(slot for step in steps for slot in step.inputs)
    makers = {slot: i for i, step in enumerate(steps) for slot in step.outputs}
    result = list(steps)
    for i, step in enumerate(steps):
        if step.node.op_type != ACCUMULATOR or len(step.inputs) != 3 or not step.runner:
            continue
        buffer, value, flag = step.inputs
        m = makers.get(value)
        is_alone = reads[value] == 1 and reads[buffer] == 1
        if m is None or not is_alone or value in lasting or flag in makers:
            continue
        maker = _with_target(result[m], value, buffer, flag)
        if maker is not None:
            result[m] = maker
            result[i] = step._replace(run=partial(_accumulate, step.run))
    return result


def _with_target(step: Step, value: int, buffer: int, flag: int) -> Step | None:
    """Return the step with a buffer for its output, or None if it cannot write into one.

    value, buffer, flag: slots, of the step's output, the buffer, and the flag.
    """
    k = step.outputs.index(value)
    like = _input_like(step, k)
    if like is None:
        return None
    n = len(step.inputs)
    target = _Target(k, n, n + 1, like)
    run = step.run if isinstance(step.run, _IntoBuffers) else _IntoBuffers(step.run, n)
    run.targets += (target,)
    return step._replace(run=run, inputs=(*step.inputs, buffer, flag))


def _input_like(step: Step, k: int) -> int | None:
    """Return the index of an input of output k's type; None if k cannot be written into an array.

    An output that is a view, or over an input, already has its memory.
    """
    runner = step.runner
    if runner is None or k in runner.views or (runner.overwrites and k == 0):
        return None
    if runner.op is None:
        return 0 if step.node.op_type in ("Gemm", "ReduceSum") else None
    op = runner.op
    if has_lists(op) or k >= len(op.outputs):
        return None
    types = [(item.type, item.memory) for item in op.inputs]
    wanted = op.outputs[k].type, "device"
    return types.index(wanted) if op.outputs[k].memory == "device" and wanted in types else None


class _IntoBuffers:
    """The run of a step, with `targets`: outputs that it writes into buffers where a flag is set.

    n_inputs: how many of the step's inputs are the run's own; buffers and flags come behind.
    """

    def __init__(self, run: Run, n_inputs: int) -> None:
        self._run, self._n = run, n_inputs
        self.targets: tuple[_Target, ...] = ()

    def __call__(
        self, values: list[Any], out: Mapping[int, Any] = MappingProxyType({})
    ) -> Sequence[Any]:
        """Return the run's outputs, in buffers where flags are set and types agree.

        values: the run's inputs, then buffers and flags. out: {output's index: array to write}.
        """
        own, outs = values[: self._n], dict(out)
        for output, buffer, flag, like in self.targets:
            if values[flag].all() and values[like].dtype == values[buffer].dtype:
                outs[output] = values[buffer]
        return self._run(own, out=outs) if outs else self._run(own)


def _accumulate(run: Run, values: list[Any]) -> Sequence[Any]:
    """Run an accumulator, or return (True, buffer) if its value was computed in the buffer."""
    buffer, value, _ = values
    return (np.ones(1, bool), buffer) if value is buffer else run(values)
