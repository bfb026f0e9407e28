# SPDX-License-Identifier: MIT
"""What is changed about a graph before it is compiled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from ..dtypes import HostArray
from ..errors import ArgumentError
from .graph import Graph, Node

SHAPED = {"MaxPoolGrad": "MaxPool", "AveragePoolGrad": "AveragePool"}
SUFFIX = "::shape"  # of the name of a value that is another's shape


def prepared(graph: Graph) -> Graph:
    """The graph with constants for nodes that are some, and shapes where gradients need them."""
    return _with_shapes(_without_constants(graph))


def _without_constants(graph: Graph) -> Graph:
    made = {node.outputs[0]: constant(node) for node in graph.nodes if _is_constant(node)}
    nodes = tuple(node for node in graph.nodes if not _is_constant(node))
    return replace(graph, nodes=nodes, constants={**graph.constants, **made})


def _is_constant(node: Node) -> bool:
    return node.op_type == "Constant" and node.is_standard and len(node.outputs) == 1


def constant(node: Node) -> HostArray:
    """The value of a Constant node."""
    types = {"value_float": np.float32, "value_floats": np.float32}
    types |= {"value_int": np.int64, "value_ints": np.int64}
    for name, value in node.attributes.items():
        if name == "value":
            return value  # type: ignore[no-any-return]
        if name in types:
            return np.array(value, types[name])
    raise ArgumentError(f"{node.title}: no constant of numbers")


def _with_shapes(graph: Graph) -> Graph:
    """A pool's gradient gets the shape of the pool's X, which no input of it says."""
    forward = {node.outputs[0]: node for node in graph.nodes if node.op_type in SHAPED.values()}
    forward |= {node.outputs[1]: node for node in forward.values() if len(node.outputs) > 1}
    nodes, wanted = [], set()
    for node in graph.nodes:
        if node.op_type in SHAPED:
            found = _pool_of(node, forward)
            if found is not None:
                name = found.inputs[0] + SUFFIX
                wanted.add(found.inputs[0])
                node = replace(node, inputs=(*node.inputs, name))
        nodes.append(node)
    return graph.with_nodes(_with_shape_nodes(nodes, forward, wanted))


def _with_shape_nodes(
    nodes: list[Node], forward: Mapping[str, Node], wanted: set[str]
) -> Iterator[Node]:
    for node in nodes:
        if node.op_type in SHAPED.values() and node.inputs[0] in wanted:
            name = node.inputs[0]
            wanted.discard(name)
            yield Node("Shape", "", 1, (name,), (name + SUFFIX,), place=node.place)
        yield node


def _pool_of(node: Node, forward: Mapping[str, Node]) -> Node | None:
    """The pool of a gradient: the one that made its indices; else the one that it is named after."""
    if node.op_type == "MaxPoolGrad":
        return forward.get(node.inputs[1]) if len(node.inputs) > 1 else None
    names = [n.removesuffix("_grad") for n in node.inputs]
    found = next((forward[n] for n in names if n in forward), None)
    if found is not None:
        return found
    title = node.name.split("_Grad/")[0]
    return next((pool for pool in forward.values() if pool.name and pool.name == title), None)
