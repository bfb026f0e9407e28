# SPDX-License-Identifier: MIT
"""What is changed about a graph before it is compiled."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..dtypes import HostArray
from ..errors import ArgumentError
from ..registry import REGISTRY
from .attributes import fitting
from .graph import Graph, Node, Problems

SHAPED = {"MaxPoolGrad": "MaxPool", "AveragePoolGrad": "AveragePool"}
N_INPUTS = {"MaxPoolGrad": 2, "AveragePoolGrad": 1}  # without the shape
SUFFIX = "::shape"  # of the name of a value that is another's shape
STATE = "::random"  # of one that is the state of a node's random numbers
DRAWING = frozenset(
    name for (_, name, _), cls in REGISTRY.items() if any(i.name == "state" for i in cls.inputs)
)


CONSTANTS = {
    "value": HostArray,
    "value_float": float,
    "value_floats": Sequence[float],
    "value_int": int,
    "value_ints": Sequence[int],
}


def prepared(graph: Graph, problems: Problems, seed: int | None = None) -> Graph:
    """The graph with constants for nodes that are some, shapes where gradients need them, and
    states for nodes that draw."""
    graph = _with_shapes(_without_constants(graph, problems), problems)
    return _with_states(_with_early_shapes(graph), problems, seed)


def _with_early_shapes(graph: Graph) -> Graph:
    """Shapes are looked at as soon as there are arrays, so that no array waits for that."""
    makers = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs}
    looks = {i for i, node in enumerate(graph.nodes) if _is_look(node)}
    behind: dict[int, list[Node]] = {}
    for i in sorted(looks):
        behind.setdefault(makers.get(graph.nodes[i].inputs[0], -1), []).append(graph.nodes[i])
    nodes = behind.get(-1, [])
    for i, node in enumerate(graph.nodes):
        nodes += [*([] if i in looks else [node]), *behind.get(i, [])]
    return graph.with_nodes(nodes)


def _is_look(node: Node) -> bool:
    return node.is_standard and node.op_type in ("Shape", "Size") and len(node.inputs) == 1


def _with_states(graph: Graph, problems: Problems, seed: int | None) -> Graph:
    """A node that draws takes its seed and its count from an array of the session's own."""
    key = secrets.randbits(64) if seed is None else seed % 2**64
    nodes, states = [], {}
    for i, node in enumerate(graph.nodes):
        place = _state_place(node)
        try:
            own = _seed_of(node, key)
        except ArgumentError as error:
            problems.add(node.title, error)
            continue
        if place is not None:
            name = f"{node.outputs[0]}{STATE}"
            states[name] = np.array([own ^ (i << 32), 0], np.uint64)
            inputs = (*node.inputs, *[""] * (place - len(node.inputs)), name)
            rest = {n: value for n, value in node.attributes.items() if n != "seed"}
            node = replace(node, inputs=inputs, attributes=rest)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), constants={**graph.constants, **states})


def _seed_of(node: Node, key: int) -> int:
    """A node's own seed, or else the session's."""
    if node.op_type not in DRAWING or "seed" not in node.attributes:
        return key
    return int(fitting({"seed": node.attributes["seed"]}, {"seed": int})["seed"]) % 2**64


def _state_place(node: Node) -> int | None:
    """Where a node that draws takes its state; None of others."""
    if node.op_type not in DRAWING or not node.outputs or (node.is_standard and node.version < 12):
        return None
    cls = next(cls for (_, name, _), cls in REGISTRY.items() if name == node.op_type)
    place = next(i for i, item in enumerate(cls.inputs) if item.name == "state")
    return place if len(node.inputs) <= place else None


def _without_constants(graph: Graph, problems: Problems) -> Graph:
    made = {}
    for node in filter(_is_constant, graph.nodes):
        try:
            made[node.outputs[0]] = constant(node)
        except ArgumentError as error:
            problems.add(node.title, error)
    nodes = tuple(node for node in graph.nodes if not _is_constant(node))
    return replace(graph, nodes=nodes, constants={**graph.constants, **made})


def _is_constant(node: Node) -> bool:
    return node.op_type == "Constant" and node.is_standard and len(node.outputs) == 1


def constant(node: Node) -> HostArray:
    """The value of a Constant node."""
    types: dict[str, Any] = {"value_float": np.float32, "value_floats": np.float32}
    types |= {"value_int": np.int64, "value_ints": np.int64}
    if len(node.attributes) != 1 or not CONSTANTS.keys() >= node.attributes.keys():
        raise ArgumentError("expected one constant of numbers")
    ((name, value),) = fitting(node.attributes, CONSTANTS).items()
    return value if name == "value" else np.array(value, types[name])


def _with_shapes(graph: Graph, problems: Problems) -> Graph:
    """A pool's gradient gets the shape of the pool's X, which no input of it says."""
    pools = [node for node in graph.nodes if node.op_type in SHAPED.values() and node.inputs]
    forward = {name: node for node in pools for name in node.outputs}
    nodes, wanted = [], set()
    for node in graph.nodes:
        if len(node.inputs) == N_INPUTS.get(node.op_type):
            found = _pool_of(node, forward)
            if found is None:
                problems.add(node.title, "the pool that it is the gradient of is not there")
            else:
                name = found.inputs[0] + SUFFIX
                wanted.add(found.inputs[0])
                node = replace(node, inputs=(*node.inputs, name))
        nodes.append(node)
    return graph.with_nodes(_with_shape_nodes(nodes, wanted))


def _with_shape_nodes(nodes: list[Node], wanted: set[str]) -> Iterator[Node]:
    for node in nodes:
        name = node.inputs[0] if node.inputs else ""
        if node.op_type in SHAPED.values() and name in wanted:
            wanted.discard(name)
            yield Node("Shape", "", 1, (name,), (name + SUFFIX,), place=node.place)
        yield node


def _pool_of(node: Node, forward: Mapping[str, Node]) -> Node | None:
    """The pool of a gradient: that which made its indices, or that which it is named after."""
    if node.op_type == "MaxPoolGrad":
        return forward.get(node.inputs[1])
    names = [n.removesuffix("_grad") for n in node.inputs]
    found = next((forward[n] for n in names if n in forward), None)
    if found is not None:
        return found
    title = node.name.split("_Grad/")[0]
    return next((pool for pool in forward.values() if pool.name and pool.name == title), None)
