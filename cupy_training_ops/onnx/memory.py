# SPDX-License-Identifier: MIT
"""When values are let go, and which results are written over an input that nobody needs again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from .graph import Node
from .kinds import Run, Runner

UNUSED = 1  # the slot of outputs that nobody wants


class Step(NamedTuple):
    """A call on values by their slots; `dead` are needed by no later one."""

    run: Run
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dead: tuple[int, ...]
    node: Node
    known: Runner | None = None  # None of a copy between host and device


def with_ends(steps: Sequence[Step], kept: set[int]) -> list[Step]:
    """The steps with what is dead after each; `kept` never is."""
    seen = set(kept)
    found = []
    for step in reversed(steps):
        dead = tuple(dict.fromkeys(s for s in (*step.inputs, *step.outputs) if s not in seen))
        seen.update(dead)
        seen.discard(UNUSED)
        found.append(step._replace(dead=dead))
    return found[::-1]


def in_place(steps: Sequence[Step], kept: set[int]) -> list[Step]:
    """The steps that write over an input: one that a step made anew, that nothing else has a view
    of, and that dies there."""
    owner = _owners(steps)
    passing = [step for step in steps if step.known and step.known.keeps]
    kept = kept.union(*((*step.inputs, *step.outputs) for step in passing))
    last = _last_uses(steps, owner, kept)
    made = {slot for step in steps if step.known for slot in step.outputs}
    found = []
    for i, step in enumerate(steps):
        chosen = []
        for k in step.known.overwrites if step.known else ():
            slot = step.inputs[k] if k < len(step.inputs) else UNUSED
            shares = sum(owner.get(s, s) == slot for s in step.inputs)
            if slot in made and owner.get(slot, slot) == slot and last[slot] == i and shares == 1:
                chosen.append(k)
        found.append(step._replace(run=_over(step, chosen)) if chosen else step)
    return found


def lasting(steps: Sequence[Step], slots: set[int], lasts: set[int]) -> frozenset[int]:
    """Which of the slots may have the memory of values that outlast a run."""
    owner = _owners(steps)
    return frozenset(slot for slot in slots if owner.get(slot, slot) in lasts)


def written_slots(steps: Sequence[Step]) -> set[int]:
    """The slots whose memory steps update in place."""
    found = {
        step.inputs[k]
        for step in steps
        if step.known
        for k in step.known.updates
        if k < len(step.inputs)
    }
    return found | owned_slots(steps, found)


def owned_slots(steps: Sequence[Step], slots: set[int]) -> set[int]:
    """Those whose memory these slots may have."""
    owner = _owners(steps)
    return {owner.get(slot, slot) for slot in slots}


def _owners(steps: Sequence[Step]) -> Mapping[int, int]:
    """Of each slot that may be a view the one whose memory it has."""
    owner: dict[int, int] = {}
    for step in steps:
        views = step.known.views if step.known else {0: 0}  # a copy of a host array may be itself
        for k, slot in enumerate(step.outputs):
            if k in views and views[k] < len(step.inputs):
                source = step.inputs[views[k]]
                owner[slot] = owner.get(source, source)
    return owner


def _last_uses(steps: Sequence[Step], owner: Mapping[int, int], kept: set[int]) -> dict[int, int]:
    """The last step that needs a slot's memory, by itself or a view of it."""
    last: dict[int, int] = {}
    for i, step in enumerate(steps):
        for slot in (*step.inputs, *step.outputs):
            last[owner.get(slot, slot)] = i
    return last | {owner.get(slot, slot): len(steps) for slot in kept}


def _over(step: Step, places: Sequence[int]) -> Run:
    """What runs a step over one of these inputs."""
    assert step.known is not None
    if step.known.op is not None:  # the result is as large as any of them
        return partial(_over_one, step.run, places[0])
    return partial(_over_largest, step.run, places)


def _over_one(run: Run, place: int, values: list[Any]) -> Sequence[Any]:
    value = values[place]
    return run(values, out={0: value}) if value.flags.c_contiguous else run(values)


def _over_largest(run: Run, places: Sequence[int], values: list[Any]) -> Sequence[Any]:
    """Over the first that all inputs are broadcast to."""
    shapes = {value.shape for value in values}
    types = {value.dtype for value in values}
    for k in places:
        if len(types) == 1 and all(_reaches(shape, values[k].shape) for shape in shapes):
            return run(values, out={0: values[k]})
    return run(values)


def _reaches(shape: Sequence[int], whole: Sequence[int]) -> bool:
    """Whether an array of a shape is repeated to have another."""
    if len(shape) > len(whole):
        return False
    pairs = zip(reversed(shape), reversed(whole), strict=False)
    return all(n in (1, m) for n, m in pairs)
