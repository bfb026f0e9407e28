# SPDX-License-Identifier: MIT
"""A node that an operator of this package runs: its attributes, and lists among its inputs."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..call.op import Op
from ..declare.schema import Input, gives
from ..errors import ArgumentError, cut
from .attributes import fitting
from .graph import Node
from .kinds import Runner

# Attributes that upstream copies from a forward node to its gradient, which has no use for them.
COPIED = frozenset({"epsilon", "stash_type", "axis", "activation", "seed", "storage_order"})
_APART = ("collective", "interop")  # they wait for others, or run the caller's functions


def of_operator(node: Node, cls: type[Op]) -> Runner:
    """What runs a node by a class; raises OpError where the node does not fit its declaration."""
    if cls.needs or cls.family in _APART:
        raise ArgumentError("it needs other processes or the caller's functions")
    op = cls.shared(**_attributes(node, cls))
    _check_count(node, cls)
    declared = declared_places(cls.inputs, len(node.inputs))
    places = {item.name: i for i, item in enumerate(cls.inputs)}
    views = {i: places[o.aliases] for i, o in enumerate(cls.outputs) if o.aliases}
    updates = _updates(cls)
    return Runner(
        partial(_maker, op, node),
        host=_living(cls.inputs, declared, "host"),
        either=_living(cls.inputs, declared, "either"),
        makes_host=frozenset(i for i, o in enumerate(cls.outputs) if o.memory == "host"),
        follows=not updates,
        views=views,
        keeps=cls.family == "control" or cls.name == "View",
        overwrites=_overwrites(cls, places),
        updates=updates,
        op=op,
    )


def _updates(cls: type[Op] | Op) -> frozenset[int]:
    """The inputs that are written."""
    names = {o.aliases for o in cls.outputs}
    return frozenset(i for i, item in enumerate(cls.inputs) if item.updated or item.name in names)


def _overwrites(cls: type[Op], places: Mapping[str, int]) -> tuple[int, ...]:
    """The inputs that the first result may be written over, where they are of its type."""
    first = cls.outputs[0]
    if any(item.variadic for item in cls.inputs) or any(item.variadic for item in cls.outputs):
        return ()
    found = (places[name] for name in first.may_alias)
    return tuple(k for k in found if cls.inputs[k].type == first.type)


def declared_places(declared: Sequence[Input], n: int) -> list[int]:
    """Which declared input each of n is: a list takes what is more, several lists take turns."""
    lists = [i for i, item in enumerate(declared) if item.variadic]
    if not lists or n <= len(declared):
        return list(range(n))
    first, behind = lists[0], len(declared) - len(lists) - lists[0]
    middle = max(n - first - behind, 0)
    turns = [lists[k % len(lists)] for k in range(middle)]
    return [*range(first), *turns, *range(len(declared) - behind, len(declared))][:n]


def _living(declared: Sequence[Input], places: Sequence[int], memory: str) -> frozenset[int]:
    return frozenset(k for k, place in enumerate(places) if declared[place].memory == memory)


def _attributes(node: Node, cls: type[Op]) -> dict[str, Any]:
    """A node's attributes by the names of the class; copied ones are left out."""
    kinds = _kinds(cls)  # type: ignore[arg-type]  # a class has a hash
    extra = sorted(node.attributes.keys() - kinds.keys() - COPIED)
    if extra:
        raise ArgumentError(f"unknown attributes {cut(', '.join(extra))}")
    found = fitting({n: v for n, v in node.attributes.items() if n in kinds}, kinds)
    if "num_outputs" in kinds:
        found.setdefault("num_outputs", len(node.outputs))
    return found


@functools.cache
def _kinds(cls: type[Op]) -> dict[str, Any]:
    """What each attribute is, by all its names."""
    kinds = {item.name: gives(item.convert) for item in cls.attributes}
    others = cls.declaration.other_attributes.items()
    return kinds | {name: kinds[other.name] for name, other in others}


def _check_count(node: Node, cls: type[Op]) -> None:
    n, has_lists = len(node.inputs), any(item.variadic for item in cls.inputs)
    if n > len(cls.inputs) and not has_lists:
        raise ArgumentError(f"expected at most {len(cls.inputs)} inputs, got {n}")
    for i, item in enumerate(cls.inputs):
        if not item.optional and (i >= n or not node.inputs[i]):
            raise ArgumentError(f"its input {item.name} is missing")
    if len(node.outputs) > len(cls.outputs) and not any(o.variadic for o in cls.outputs):
        raise ArgumentError(f"expected at most {len(cls.outputs)} outputs")


def _maker(op: Op, node: Node, xp: Any) -> Any:
    """The function of a list of inputs, over one array module."""
    if any(item.variadic for item in op.inputs) or any(item.variadic for item in op.outputs):
        return partial(_with_lists, op, _Taken(op, xp))
    given = [i < len(node.outputs) and bool(node.outputs[i]) for i in range(len(op.outputs))]
    wanted = tuple(o.name for o, is_given in zip(op.outputs, given, strict=True) if is_given)
    return partial(_plain, op, _Taken(op, xp), None if all(given) or not any(given) else wanted)


def _plain(
    op: Op, taken: _Taken, wanted: tuple[str, ...] | None, values: list[Any], out: Any = None
) -> Sequence[Any]:
    given = None if out is None else tuple([out.get(k) for k in range(len(op.outputs))])
    results = op(*taken(values), outputs=wanted, out=given)
    return results if len(op.outputs) > 1 else (results,)


class _Taken:
    """Inputs as an operator takes them: arrays without gaps but where they are written, numbers
    where arrays are elsewhere."""

    def __init__(self, op: Op, xp: Any) -> None:
        self._xp, updates = xp, _updates(op)
        self._read = tuple(i for i in range(len(op.inputs)) if i not in updates)
        either = (i for i, item in enumerate(op.inputs) if item.memory == "either")
        self._either = tuple(either) if xp is not np else ()

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        found, xp = list(values), self._xp
        for i in self._read:
            if i >= len(found):
                break
            value = found[i]
            if isinstance(value, list):
                found[i] = [dense(xp, v) for v in value]
            elif value is not None:
                found[i] = dense(xp, value)
        for i in self._either:
            if i < len(found) and isinstance(found[i], np.ndarray):
                value = found[i]
                found[i] = value.item() if value.size == 1 else tuple(value.tolist())
        return found


def dense(xp: Any, value: Any) -> Any:
    """An array as operators take it; anything else as it is."""
    flags = getattr(value, "flags", None)
    return value if flags is None or flags.c_contiguous else xp.ascontiguousarray(value)


def _with_lists(op: Op, taken: _Taken, values: list[Any]) -> Sequence[Any]:
    """Sequences come in and go out whole; else each array of a list is an input of its own."""
    whole = any(isinstance(value, list) for value in values)
    results = op(*taken(values if whole else _gathered(op, values)))
    if len(op.outputs) == 1:
        results = (results,)
    if whole:
        return [list(r) if isinstance(r, tuple | list) else r for r in results]
    return _spread_out(op, results)


def _gathered(op: Op, values: list[Any]) -> list[Any]:
    """Inputs as declared, each list put together of those that are its own."""
    found: list[Any] = [[] if item.variadic else None for item in op.inputs]
    for place, value in zip(declared_places(op.inputs, len(values)), values, strict=True):
        if op.inputs[place].variadic:
            found[place].append(value)
        else:
            found[place] = value
    return [None if isinstance(value, list) and not value else value for value in found]


def _spread_out(op: Op, results: Sequence[Any]) -> list[Any]:
    """The outputs one after the other, of several lists an array of each in turn."""
    parts = list(zip(op.outputs, results, strict=True))
    single = [result for item, result in parts if not item.variadic]
    columns = [result or () for item, result in parts if item.variadic]
    rows = [array for row in zip(*columns, strict=True) for array in row]
    return [*rows, *single] if op.outputs[0].variadic else [*single, *rows]
