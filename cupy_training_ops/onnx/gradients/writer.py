# SPDX-License-Identifier: MIT
"""Writer: a graph to which nodes are added, with names, constants and known types."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from types import MappingProxyType
from typing import Any

import numpy as np

from ...dtypes import Dtype, HostArray
from ...errors import ArgumentError, cut
from ..graph import Graph, Node, Value, subgraphs
from ..stored import graph_dtype

OPSET = 17  # of ONNX's own operators where the model has none
SEQUENCES = {  # operators that make sequences
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SplitToSequence",
}


def is_real(dtype: Dtype | None) -> bool:
    """Return True of a floating type, and of None, a type that is not known."""
    return dtype is None or dtype.kind == "f" or "float" in dtype.name


def names_of(graph: Graph) -> set[str]:
    """Return the names of all values, those in subgraphs as well."""
    names = {name for node in graph.nodes for name in node.outputs}
    names |= {item.name for item in graph.inputs} | graph.constants.keys()
    parts = (part for node in graph.nodes for part in subgraphs(node).values())
    return names.union(*map(names_of, parts))


def sequences_of(graph: Graph, types: Mapping[str, Dtype]) -> dict[str, Dtype | None]:
    """Return {name of a value that is a sequence: type of its arrays, None if unknown}.

    types: of single arrays by name.
    """
    known = {item.name: item.dtype for item in graph.inputs if item.is_sequence}
    for node in graph.nodes:
        dtypes = [known.get(name) or types.get(name) for name in node.inputs]
        if node.op_type == "SequenceEmpty":
            known[node.outputs[0]] = graph_dtype(node.attributes.get("dtype", 1))
        elif node.op_type in SEQUENCES:
            known[node.outputs[0]] = next(filter(None, dtypes), None)
        elif node.op_type == "Identity" and node.inputs[0] in known:
            known[node.outputs[0]] = dtypes[0]
        for part in subgraphs(node).values():
            results = part.outputs[node.op_type == "Loop" :]  # a Loop's body has a condition first
            pairs = zip(node.outputs, results, strict=False)
            known |= {
                name: item.dtype
                for name, item in pairs
                if item.is_sequence or node.op_type == "SequenceMap"
            }
    return known


class Writer:
    """Adds nodes behind those of a graph.

    forward: the graph's nodes, whose items may be replaced. constants, types, shapes: of values by
    name; sequences: the type of their arrays by a sequence's name. version: the opset of added
    nodes. names: all names in use. parameters: names of constants whose values will change.
    """

    def __init__(self, graph: Graph, parameters: Collection[str] = ()) -> None:
        self.graph, self.parameters = graph, frozenset(parameters)
        self.forward = list(graph.nodes)
        self.constants = dict(graph.constants)
        self.types = {**graph.types, **{n: a.dtype for n, a in graph.constants.items()}}
        self.shapes = dict(graph.shapes)
        self._follow_types()
        self.sequences = sequences_of(graph, self.types)
        self.version = max((n.version for n in graph.nodes if n.is_standard), default=OPSET)
        self._nodes: list[Node] = []
        self.names = names_of(graph)

    def _follow_types(self) -> None:
        """Give first outputs of unknown type the type of the node's first floating input.

        ONNX infers no types behind operators of other domains.
        """
        for node in self.forward:
            known = (self.types[name] for name in node.inputs if name in self.types)
            dtype = next(filter(is_real, known), None)
            if dtype is not None and node.outputs[0]:
                self.types.setdefault(node.outputs[0], dtype)

    def result(self) -> Graph:
        """Return the graph with all that was added."""
        nodes = (*self.forward, *self._nodes)
        graph = replace(self.graph, nodes=nodes, constants=self.constants)
        return replace(graph, types=self.types, shapes=self.shapes)

    def new_name(self, name: str) -> str:
        """Return `name`, or name_1, name_2, ... if a value has that; it is in use from now on."""
        result, i = name, 0
        while result in self.names:
            i += 1
            result = f"{name}_{i}"
        self.names.add(result)
        return result

    def declare_like(self, name: str, like: str) -> None:
        """Note for the value `name` the type and shape of `like`, as far as they are known."""
        if like in self.sequences:
            self.types.pop(name, None)
            self.sequences[name] = self.sequences[like]
            return
        if like in self.types:
            self.types[name] = self.types[like]
        known = self.constants.get(like)
        shape = self.shapes.get(like) if known is None else known.shape
        if shape is not None:
            self.shapes[name] = shape

    def constant(self, name: str, value: HostArray) -> str:
        """Add a constant; return its name: `name`, or name_1, name_2, ... if that is in use."""
        name = self.new_name(name)
        self.constants[name], self.types[name] = value, value.dtype
        return name

    def add(
        self,
        op_type: str,
        inputs: Sequence[str],
        name: str,
        *,
        n_outputs: int = 1,
        domain: str = "",
        dtype: Dtype | None = None,
        attributes: Mapping[str, Any] = MappingProxyType({}),
    ) -> tuple[str, ...]:
        """Add a node over values `inputs`; return the names of its n_outputs results.

        Each is `name`, or name_1, name_2, ... if that is in use. dtype: the results' type; by
        default that of the first input whose type is known.
        """
        results = tuple(self.new_name(name) for _ in range(n_outputs))
        version = 1 if domain else self.version
        node = Node(op_type, domain, version, tuple(inputs), results, attributes, results[0])
        self._nodes.append(node)
        known = (self.sequences.get(n) or self.types.get(n) for n in inputs)
        dtype = dtype or next(filter(None, known), None)
        if op_type in SEQUENCES:
            self.sequences.update(dict.fromkeys(results, dtype))
        elif dtype is not None:
            self.types.update(dict.fromkeys(results, dtype))
        return results


# ---- zeros, and sequences ------------------------------------------------------------------------


def sum_of_sequences(writer: Writer, parts: Sequence[str], name: str) -> str:
    """Add nodes for the element-wise sum of sequences of these names; return the result's name."""
    return reduce(lambda a, b: _map(writer, (a, b), name, [_step("Add", "ab", "y")]), parts)


def zeros_of(writer: Writer, name: str) -> str:
    """Add nodes for zeros like a value (of a sequence, a sequence of them); return their name."""
    dtype = writer.sequences.get(name) or writer.types.get(name)
    if dtype is None:
        raise ArgumentError(f"its gradient needs the type of {cut(name)!r}")
    zero, zeros = {"value": np.zeros(1, dtype)}, f"{name}_zeros"
    if name in writer.sequences:
        steps = [_step("Shape", "a", "s"), _step("ConstantOfShape", "s", "y", **zero)]
        return _map(writer, (name,), zeros, steps)
    known = writer.constants.get(name)
    extents = writer.shapes.get(name) if known is None else known.shape
    if extents is not None and all(isinstance(n, int) for n in extents):
        shape = writer.constant(f"{name}_shape", np.array(extents, np.int64))
    else:
        (shape,) = writer.add("Shape", [name], f"{name}_shape", dtype=np.dtype(np.int64))
    return writer.add("ConstantOfShape", [shape], zeros, dtype=dtype, attributes=zero)[0]


def lengths_of(writer: Writer, sequence: str, axis: int) -> str:
    """Add nodes for the lengths of a sequence's arrays along an axis; return the result's name.

    The result is a sequence of int64 arrays of shape (1,). Needs opset 15, whose Shape has `start`.
    """
    part = {"start": axis} | ({} if axis == -1 else {"end": axis + 1})
    result = _map(writer, (sequence,), f"{sequence}_lengths", [_step("Shape", "a", "y", **part)])
    writer.sequences[result] = np.dtype(np.int64)
    return result


def _step(op_type: str, inputs: str, output: str, **attributes: object) -> Node:
    """Return a node for _map; inputs: a letter for each, "ab" for a and b."""
    return Node(op_type, "", 0, tuple(inputs), (output,), attributes)


def _map(writer: Writer, sequences: Sequence[str], name: str, steps: Sequence[Node]) -> str:
    """Add a SequenceMap to `writer`; return its result's name, `name` or one that begins so.

    sequences: one or two names. steps: nodes of its body, which compute y from a, an element of
    sequences[0], and b, one of sequences[1].
    """
    letters = sorted({each for node in steps for each in (*node.inputs, *node.outputs)})
    names = {letter: writer.new_name(f"{name}_{letter}") for letter in letters}
    nodes = tuple(
        replace(
            node,
            version=writer.version,
            inputs=tuple(names[each] for each in node.inputs),
            outputs=(names[node.outputs[0]],),
        )
        for node in steps
    )
    inputs = tuple(Value(names[each], None, None) for each, _ in zip("ab", sequences, strict=False))
    body = Graph(nodes, inputs, (Value(names["y"], None, None),), {})
    (result,) = writer.add("SequenceMap", sequences, name, attributes={"body": body})
    writer.sequences[result] = writer.sequences.get(sequences[0])
    return result
