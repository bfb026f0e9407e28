# SPDX-License-Identifier: MIT
"""A graph as plain data: what a model's protobuf says, once its attributes are Python values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import numpy as np

from ..dtypes import Dtype, HostArray
from ..errors import ArgumentError, cut, shown

STANDARD = ("", "ai.onnx")  # two names of one domain
MOST_SHOWN = 30  # problems in a message
Extent = int | str | None  # of a dimension: a number, a name, or nothing is said


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a graph.

    version: the opset of its domain. inputs, outputs: names, "" where one is left out. attributes:
    Python numbers, texts, tuples, NumPy arrays and Graphs by name. place: the node's index in the
    model's file, for messages.
    """

    op_type: str
    domain: str
    version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    place: int = 0

    @property
    def title(self) -> str:
        """The name of the node in messages."""
        name = self.name or next((f"{o} =" for o in self.outputs if o), "")
        return f"node {self.place} {cut(name)!r} ({cut(self.op_type)})"

    @property
    def is_standard(self) -> bool:
        """True of a node of ONNX's own domain."""
        return self.domain in STANDARD


class Value(NamedTuple):
    """An input or output; dtype and shape are None where the graph does not say them."""

    name: str
    dtype: Dtype | None
    shape: tuple[Extent, ...] | None
    is_sequence: bool = False
    is_optional: bool = False

    @property
    def is_array(self) -> bool:
        """True of a single array that is there."""
        return not (self.is_sequence or self.is_optional)


class Empty:
    """An optional value that has no element."""

    def __repr__(self) -> str:
        return "an empty optional"


EMPTY = Empty()


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in an order in which they can run, inputs, outputs, and constants by name.

    types and shapes: what the model declares of values (also inner ones) by name.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    constants: Mapping[str, HostArray]
    types: Mapping[str, Dtype] = field(default_factory=dict)
    shapes: Mapping[str, tuple[Extent, ...]] = field(default_factory=dict)
    n_captured: int = 0  # inputs of a subgraph, at the end, that are values of the graph around it
    source: Any = None  # of a subgraph, its protobuf

    def free_names(self) -> tuple[str, ...]:
        """Return the names that nodes read and nothing in the graph makes, in order of first use.

        In a subgraph these are values of the graph around it.
        """
        own = {item.name for item in self.inputs} | self.constants.keys()
        own.update(name for node in self.nodes for name in node.outputs)
        read = [name for node in self.nodes for name in node.inputs]
        read += [item.name for item in self.outputs]
        return tuple(dict.fromkeys(name for name in read if name and name not in own))

    def with_nodes(self, nodes: Iterable[Node]) -> Graph:
        """A copy of the graph with other nodes."""
        return replace(self, nodes=tuple(nodes))

    def with_attributes(self, op_types: Collection[str], **attributes: Any) -> Graph:
        """Return a copy of the graph with these attributes added to all nodes of `op_types`."""
        return self.with_nodes(
            replace(node, attributes={**node.attributes, **attributes})
            if node.op_type in op_types
            else node
            for node in self.nodes
        )


def subgraphs(node: Node) -> dict[str, Graph]:
    """Return the graphs among a node's attributes, by the attribute's name."""
    return {name: part for name, part in node.attributes.items() if isinstance(part, Graph)}


def parts_around(node: Node) -> dict[str, Graph]:
    """Return {attribute: subgraph} with captured values under their names in the graph around.

    A subgraph's last n_captured inputs are values of the graph around; the node's last n_captured
    inputs name the same values there.
    """
    parts = subgraphs(node)
    for name, part in parts.items():
        inner = [item.name for item in part.inputs[len(part.inputs) - part.n_captured :]]
        pairs = zip(inner, node.inputs[len(node.inputs) - part.n_captured :], strict=True)
        names = {own: outer for own, outer in pairs if own != outer}
        parts[name] = _renamed(part, names) if names else part
    return parts


def _renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """Return a graph, and graphs inside it, with inputs renamed; names: {old: new}."""

    def values(items: Iterable[Value]) -> tuple[Value, ...]:
        return tuple(item._replace(name=names.get(item.name, item.name)) for item in items)

    nodes = tuple(
        replace(node, inputs=tuple(names.get(name, name) for name in node.inputs))
        for node in graph.nodes
    )
    nodes = tuple(
        replace(node, attributes={**node.attributes, **parts_around(node)})
        if subgraphs(node)
        else node
        for node in nodes
    )
    return replace(graph, nodes=nodes, inputs=values(graph.inputs), outputs=values(graph.outputs))


def may_repeat_to(shape: Sequence[Extent], whole: Sequence[int]) -> bool:
    """Return True if an array of `shape` broadcasts to `whole`; an unknown extent always fits."""
    if len(shape) > len(whole):
        return False
    pairs = zip(reversed(shape), reversed(whole), strict=False)
    return all(not isinstance(n, int) or n in (1, m) for n, m in pairs)


class Problems:
    """The reasons to refuse a model, gathered so that one error says all of them.

    model: its name in the message. lines: "where: what" of each reason.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self.lines: list[str] = []

    def add(self, where: str, what: object) -> None:
        """Add a reason."""
        self.lines.append(f"{where}: {what}")

    def refuse(self) -> None:
        """Raise ArgumentError if there are any."""
        if self.lines:
            lines = self.lines[:MOST_SHOWN]
            if len(self.lines) > MOST_SHOWN:
                lines.append(f"and {len(self.lines) - MOST_SHOWN} more")
            raise ArgumentError("\n  ".join([f"{self.model} cannot be run:", *lines]))


def places_of(
    nodes: Sequence[Node], names: Iterable[str], outside: Iterable[str] = ()
) -> list[int]:
    """Return the indices, in order, of the nodes that `names` are computed by.

    These are the makers of the names, of the makers' inputs, and so on, back to the values
    `outside`, whose makers are left out.
    """
    ends = {*outside, ""}
    wanted, places = set(names) - ends, []
    for i in reversed(range(len(nodes))):
        if not wanted.isdisjoint(nodes[i].outputs):
            places.append(i)
            wanted.update(name for name in nodes[i].inputs if name not in ends)
    return places[::-1]


def sort_nodes(nodes: Iterable[Node], known: Iterable[str], problems: Problems) -> tuple[Node, ...]:
    """Return the nodes in topological order: as they are, if that is one.

    known: names of inputs and constants. Cycles, names that two nodes make, and inputs that nothing
    makes are added to `problems`.
    """
    nodes = tuple(nodes)
    makers = _makers(nodes, set(known), problems)
    # How many makers of a node's inputs are not in `order` yet.
    waiting = [len({makers[name] for name in node.inputs if name in makers}) for node in nodes]
    readers: dict[int, set[int]] = {}  # index of a node: indices of those that read its outputs
    for i, node in enumerate(nodes):
        for name in node.inputs:
            if name in makers:
                readers.setdefault(makers[name], set()).add(i)
    ready = [i for i, n in enumerate(waiting) if n == 0][::-1]
    order: list[int] = []
    while ready:
        i = ready.pop()
        order.append(i)
        for j in sorted(readers.get(i, ()), reverse=True):
            waiting[j] -= 1
            if waiting[j] == 0:
                ready.append(j)
    rest = sorted(set(range(len(nodes))) - set(order))
    for i in rest:
        problems.add(nodes[i].title, "it is in a circle of nodes, or behind one")
    order += rest
    if all(makers.get(name, -1) < i for i, node in enumerate(nodes) for name in node.inputs):
        return nodes
    return tuple(nodes[i] for i in order)


def _makers(nodes: tuple[Node, ...], known: set[str], problems: Problems) -> dict[str, int]:
    """Return {value's name: index of the node that makes it}.

    known: names of inputs and constants. Names that are made twice, and inputs that nothing makes,
    are added to `problems`.
    """
    makers: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for name in filter(None, node.outputs):
            if name in makers or name in known:
                problems.add(node.title, f"its output {cut(name)!r} is made twice")
            makers.setdefault(name, i)
    for node in nodes:
        for name in filter(None, node.inputs):
            if name not in makers and name not in known:
                problems.add(node.title, f"nothing makes its input {cut(name)!r}")
    return makers


# ---- attributes, by the annotations of functions and classes -------------------------------------


_WORDS = {
    int: "an integer",
    bool: "an integer",
    float: "a float",
    str: "text",
    Value: "a type",
    Graph: "a graph",
}
_LISTS = {int: "a list of integers", float: "a list of floats", str: "a list of texts"}


def check_attributes(attributes: Mapping[str, object], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes, flags as bools; refuse a value that does not fit its annotation.

    kinds: a type or annotation by name, such as `int`, `float | None` or `Sequence[int]`; of
    `bool` the value is an integer in a file.
    """
    return {name: _check_attribute(name, value, kinds[name]) for name, value in attributes.items()}


def _check_attribute(name: str, value: object, kind: Any) -> Any:
    """Return one attribute's value, a flag as a bool; refuse it if it does not fit `kind`."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if bool in kinds and isinstance(value, int):
        return bool(value)
    if any(_is(value, each) for each in kinds):
        return value
    raise ArgumentError(f"{name}: expected {_words(kinds[0])}, got {shown(value)}")


def _is(value: object, kind: Any) -> bool:
    """Return True if a value fits an annotation; an integer is no float, as in ONNX.

    For an annotation of another kind than below, any value fits, but none fits NoneType.
    """
    if get_origin(kind) is Literal:
        return type(value) is type(get_args(kind)[0])
    item = _item(kind)
    if item is not None:
        return isinstance(value, tuple) and all(isinstance(each, item) for each in value)
    if kind == HostArray:
        return isinstance(value, np.ndarray)
    return isinstance(value, kind) if kind in _WORDS else kind is not type(None)


def _item(kind: Any) -> type | None:
    """Return int, float or str of an annotation such as `Sequence[int]`; None of others."""
    item = get_args(kind)[0] if get_args(kind) else None
    return item if item in _LISTS else None


def _words(kind: Any) -> str:
    """Return an annotation in words, for messages: "a list of integers"."""
    if get_origin(kind) is Literal:
        return _WORDS[type(get_args(kind)[0])]
    item = _item(kind)
    return _WORDS.get(kind, "an array") if item is None else _LISTS[item]
