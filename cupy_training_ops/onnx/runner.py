# SPDX-License-Identifier: MIT
"""Runners of nodes: an operator of this package, or a function of the table.

runner_of(node).make(xp)([x, y])    the node's outputs, a sequence
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ..call.op import Op
from ..declare.schema import Input, gives
from ..dtypes import Dtype
from ..errors import ArgumentError, cut
from ..registry import REGISTRY
from .graph import EMPTY, Node, check_attributes
from .standard import NEWEST, TABLE, Standard, find
from .vectors import dense

Run = Callable[..., Sequence[Any]]

# Attributes that ONNX Runtime copies from a forward node to its gradient, which ignores them.
COPIED = frozenset({"epsilon", "stash_type", "axis", "activation", "seed", "storage_order"})
_APART = ("collective", "interop")  # families that wait for other processes, or call the caller's
_CONTRIB = ("", "ai.onnx", "com.microsoft")  # domains in which the table's functions are looked up
_OTHER = frozenset({"Unique"})  # in com.microsoft they are other operators than ONNX's
_NAMES = {"ai.onnx": "", "": ""}  # domains of a second name
_BY_NAME: dict[str, list[type[Op]]] = {}  # classes of this package by operator, all versions
for _key, _cls in REGISTRY.items():
    _BY_NAME.setdefault(_key[1], []).append(_cls)


@dataclass(frozen=True, slots=True)
class Runner:
    """How a node is run, and what a session may know of it. Inputs and outputs are indices.

    `make(xp)` of numpy or cupy returns `run(inputs, out={})`, which returns a sequence of outputs,
    and may change the list of inputs; `out` has arrays to write outputs into, by index.
    """

    make: Callable[[Any], Run]
    host: frozenset[int] = frozenset()  # inputs that are read on the host
    either: frozenset[int] = frozenset()  # inputs that may be on the host or the device
    makes_host: frozenset[int] = frozenset()  # outputs that are always on the host
    follows: bool = False  # may be computed on the host, if its inputs are there
    shapes_only: bool = False  # reads only the shapes of its inputs
    grows: bool = False  # its outputs may be much larger than its inputs
    views: Mapping[int, int] = field(default_factory=dict)  # output: input whose memory it may have
    updates: frozenset[int] = frozenset()  # inputs written in place, also where others read them
    keeps: bool = False  # an output may have the memory of any input
    overwrites: tuple[int, ...] = ()  # inputs of the first result's type and, if largest, shape
    refuse_types: Callable[[Sequence[Dtype | None]], None] | None = None  # of inputs
    noted: bool = False  # its launches may be recorded: a recording that lacks some says so
    op: Op | None = None  # None: a function of the table runs it


def runner_of(node: Node) -> Runner:
    """Return the runner of a node; OpError with the reason where nothing runs it."""
    cls = _operator(node)
    if cls is not None:
        return _operator_runner(node, cls)
    is_ours = node.domain in _CONTRIB and (node.is_standard or node.op_type not in _OTHER)
    name = node.op_type if is_ours else f"{node.domain}.{node.op_type}"
    item = find(name, node.version if node.is_standard else NEWEST)
    if item is not None:
        return _table_runner(node, item)
    if name in TABLE:
        raise ArgumentError(f"not in opset {node.version}")
    domain = f"domain {cut(node.domain)!r}" if node.domain else "ONNX's own domain"
    raise ArgumentError(f"unknown operator {cut(node.op_type)} of {domain}")


def is_known(node: Node) -> bool:
    """Return True if something here runs the operator in the node's opset."""
    if node.op_type == "Constant" or _operator(node) is not None:
        return True
    return node.domain in _CONTRIB and find(node.op_type, node.version) is not None


def _operator(node: Node) -> type[Op] | None:
    """Return the newest operator class for a node; None if the table or nothing serves it.

    A class of the node's domain and opset comes first; then the table; then one of other domains.
    """
    classes = _BY_NAME.get(node.op_type, [])
    own = [cls for cls in classes if _NAMES.get(cls.domain, cls.domain) == node.domain]
    in_table = node.is_standard and node.op_type in TABLE
    if not own:
        return None if in_table or not classes else classes[-1]
    if not node.is_standard:
        return max(own, key=lambda cls: cls.since)
    serving = [c for c in own if c.since <= node.version <= (c.until or node.version)]
    if not serving and not in_table:  # as LayerNormalization before its opset
        serving = own
    return max(serving, key=lambda cls: cls.since, default=None)


# ---- functions of the table ----------------------------------------------------------------------


def _table_runner(node: Node, item: Standard) -> Runner:
    """Return a runner that calls a function of the table; attributes are checked by its signature.

    item.view: any output may have the first input's memory.
    """
    count = {"n_outputs": len(node.outputs)} if item.takes_count else {}
    attributes = item.check([bool(name) for name in node.inputs], {**node.attributes, **count})
    return Runner(
        lambda xp: partial(_run_function, partial(item.function, xp, **attributes)),
        host=frozenset(item.host),
        makes_host=frozenset({0} if item.shapes_only and not item.grows else ()),
        follows=not (item.shapes_only or item.updates),
        shapes_only=item.shapes_only,
        grows=item.grows,
        views=dict.fromkeys(range(len(node.outputs)), 0) if item.view else {},
        keeps=item.keeps,
        overwrites=item.overwrites,
        updates=frozenset(item.updates),
        refuse_types=partial(item.refuse_types, attributes) if item.refuse_types else None,
        noted=item.noted,
    )


def _run_function(function: Any, values: list[Any], out: Any = None) -> Sequence[Any]:
    """Return a function's results as a sequence, NumPy's scalars as arrays; out: {0: array}."""
    result = function(*values) if out is None else function(*values, out=out[0])
    if type(result) is tuple:
        return tuple([np.asarray(r) if isinstance(r, np.generic) else r for r in result])
    return (np.asarray(result) if isinstance(result, np.generic) else result,)


# ---- operators of this package -------------------------------------------------------------------


def _operator_runner(node: Node, cls: type[Op]) -> Runner:
    """Return a runner by an operator class; OpError where the node does not fit it."""
    if cls.needs or cls.family in _APART:
        raise ArgumentError("it needs other processes or the caller's functions")
    op = cls.shared(**_attributes(node, cls))
    _check_count(node, cls)
    declared = declared_places(cls.inputs, len(node.inputs))
    places = {item.name: i for i, item in enumerate(cls.inputs)}
    updates = _updates(cls)
    return Runner(
        partial(_maker, op, node),
        host=_inputs_in(cls.inputs, declared, "host"),
        either=_inputs_in(cls.inputs, declared, "either"),
        makes_host=frozenset(i for i, o in enumerate(cls.outputs) if o.memory == "host"),
        follows=not updates,
        views={i: places[o.aliases] for i, o in enumerate(cls.outputs) if o.aliases},
        keeps=cls.family == "control" or cls.name == "View",
        overwrites=_overwrites(cls, places),
        updates=updates,
        noted=True,
        op=op,
    )


def has_lists(op: type[Op] | Op) -> bool:
    """Return True if an input or an output is a list of arrays."""
    return any(i.variadic for i in op.inputs) or any(o.variadic for o in op.outputs)


def _updates(op: type[Op] | Op) -> frozenset[int]:
    """Return the indices of declared inputs that the operator writes in place."""
    names = {o.aliases for o in op.outputs}
    return frozenset(i for i, item in enumerate(op.inputs) if item.updated or item.name in names)


def _overwrites(cls: type[Op], places: Mapping[str, int]) -> tuple[int, ...]:
    """Return the indices of inputs that the first result may be written over, of its type."""
    if has_lists(cls):
        return ()
    first = cls.outputs[0]
    inputs = (places[name] for name in first.may_alias)
    return tuple(k for k in inputs if cls.inputs[k].type == first.type)


def declared_places(declared: Sequence[Input], n: int) -> list[int]:
    """Return, for each of a node's n inputs, the index of the declared input that it belongs to.

    A variadic declared input (a list) gets all inputs that are more; several lists alternate.

    (A, B) of n = 2: 0 1.  (lr, params..., grads...) of n = 5: 0 1 2 1 2.
    """
    lists = [i for i, item in enumerate(declared) if item.variadic]
    if not lists or n <= len(declared):
        return list(range(n))
    first, behind = lists[0], len(declared) - len(lists) - lists[0]
    middle = max(n - first - behind, 0)
    turns = [lists[k % len(lists)] for k in range(middle)]
    return [*range(first), *turns, *range(len(declared) - behind, len(declared))][:n]


def _inputs_in(declared: Sequence[Input], places: Sequence[int], memory: str) -> frozenset[int]:
    """Return the indices k of a node's inputs with declared[places[k]].memory == memory."""
    return frozenset(k for k, place in enumerate(places) if declared[place].memory == memory)


def _attributes(node: Node, cls: type[Op]) -> dict[str, Any]:
    """Return a node's attributes that the class has, with their values checked.

    Others are left out if they are COPIED, else refused. num_outputs is by default how many outputs
    the node has.
    """
    kinds = _kinds(cls)  # type: ignore[arg-type]  # a class has a hash
    extra = sorted(node.attributes.keys() - kinds.keys() - COPIED)
    if extra:
        raise ArgumentError(f"unknown attributes {cut(', '.join(extra))}")
    attributes = check_attributes({n: v for n, v in node.attributes.items() if n in kinds}, kinds)
    if "num_outputs" in kinds:
        attributes.setdefault("num_outputs", len(node.outputs))
    return attributes


@functools.cache
def _kinds(cls: type[Op]) -> dict[str, Any]:
    """Return {attribute's name, here or in ONNX Runtime: type of its value}."""
    kinds = {item.name: gives(item.convert) for item in cls.attributes}
    aliases = cls.declaration.other_attributes.items()
    return kinds | {name: kinds[attribute.name] for name, attribute in aliases}


def _check_count(node: Node, cls: type[Op]) -> None:
    """Refuse too many inputs or outputs, and a required input that is left out."""
    n = len(node.inputs)
    if n > len(cls.inputs) and not any(item.variadic for item in cls.inputs):
        raise ArgumentError(f"expected at most {len(cls.inputs)} inputs, got {n}")
    for i, item in enumerate(cls.inputs):
        if not item.optional and (i >= n or not node.inputs[i]):
            raise ArgumentError(f"its input {item.name} is missing")
    if len(node.outputs) > len(cls.outputs) and not any(o.variadic for o in cls.outputs):
        raise ArgumentError(f"expected at most {len(cls.outputs)} outputs")


def _maker(op: Op, node: Node, xp: Any) -> Run:
    """Return `run(inputs)`, which computes a node by the operator `op` over xp, numpy or cupy."""
    takes_lists, updates = has_lists(op), _updates(op)
    n = len(op.inputs) if takes_lists else len(node.inputs)
    # Indices of inputs that it only reads, which have to be C-contiguous; and of inputs that it
    # takes as Python numbers, where the host has them and a device computes.
    read = [i for i in range(n) if i not in updates]
    either = [i for i in range(n) if op.inputs[i].memory == "either"] if xp is not np else []
    if takes_lists:
        return partial(_run_with_lists, op, xp, read, either)
    wanted = [i < len(node.outputs) and bool(node.outputs[i]) for i in range(len(op.outputs))]
    names = tuple(o.name for o, is_wanted in zip(op.outputs, wanted, strict=True) if is_wanted)
    is_whole = all(wanted) or not any(wanted)
    return partial(_run_operator, op, xp, read, either, None if is_whole else names)


def _run_operator(
    op: Op,
    xp: Any,
    read: Sequence[int],
    either: Sequence[int],
    wanted: tuple[str, ...] | None,
    values: list[Any],
    out: Any = None,
) -> Sequence[Any]:
    """Return the results of an operator without lists, of the inputs `values`, which are changed.

    read: indices of inputs to be made C-contiguous. either: of those that it takes as numbers if
    they are NumPy's. wanted: names of outputs, None for all. out: {output's index: array to write}.
    """
    for i in read:
        values[i] = dense(xp, values[i])
    if either:
        _read_numbers(values, either)
    outs = None if out is None else tuple(map(out.get, range(len(op.outputs))))
    results = op(*values, outputs=wanted, out=outs)
    return results if len(op.outputs) > 1 else (results,)


def _read_numbers(values: list[Any], places: Sequence[int]) -> None:
    """Replace NumPy arrays at the indices `places` by a number, or a tuple of numbers."""
    for i in places:
        if i < len(values) and isinstance(values[i], np.ndarray):
            value = values[i]
            values[i] = value.item() if value.size == 1 else tuple(value.tolist())


def _run_with_lists(
    op: Op, xp: Any, read: Sequence[int], either: Sequence[int], values: list[Any]
) -> Sequence[Any]:
    """Return the outputs of an operator that has lists among its inputs or outputs.

    values are either of these, and outputs come back in the same form:

        (lr, [a, b], [c, d])    each list an ONNX sequence
        (lr, a, c, b, d)        each array an input of its own

    read: indices of declared inputs to be made C-contiguous; either: of those taken as numbers.
    """
    are_whole = any(isinstance(value, list) for value in values)
    arguments = values if are_whole else _by_declaration(op, values)
    for i in read:
        if i < len(arguments):
            value = arguments[i]
            is_list = isinstance(value, list)
            arguments[i] = [dense(xp, v) for v in value] if is_list else dense(xp, value)
    _read_numbers(arguments, either)
    results = op(*arguments)
    if len(op.outputs) == 1:
        results = (results,)
    if are_whole:
        return [list(r) if isinstance(r, tuple | list) else r for r in results]
    return _one_by_one(op, results)


def _by_declaration(op: Op, values: list[Any]) -> list[Any]:
    """Return a node's inputs, `values`, as the operator declares them; None for an empty list.

    (lr, a, c, b, d) of an operator (lr, params..., grads...) are [lr, [a, b], [c, d]].
    """
    arguments: list[Any] = [[] if item.variadic else None for item in op.inputs]
    for place, value in zip(declared_places(op.inputs, len(values)), values, strict=True):
        if op.inputs[place].variadic:
            arguments[place].append(value)
        else:
            arguments[place] = value
    return [None if isinstance(value, list) and not value else value for value in arguments]


def _one_by_one(op: Op, results: Sequence[Any]) -> list[Any]:
    """Return outputs one after the other: [a, b], [c, d], e as [a, c, b, d, e]."""
    parts = list(zip(op.outputs, results, strict=True))
    single = [result for item, result in parts if not item.variadic]
    columns = [result or () for item, result in parts if item.variadic]
    rows = [array for row in zip(*columns, strict=True) for array in row]
    return [*rows, *single] if op.outputs[0].variadic else [*single, *rows]


def each(function: Callable[[Any], Any], value: Any) -> Any:
    """Return function(value), of a list [function(item), ...]; None and EMPTY as they are."""
    if isinstance(value, list):
        return [function(item) for item in value]
    return value if value is None or value is EMPTY else function(value)
