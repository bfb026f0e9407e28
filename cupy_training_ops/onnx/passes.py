# SPDX-License-Identifier: MIT
"""Changes of a graph before it is compiled: constants, shapes, random states, the order of nodes.

Upstream's graphs make many gradients of parameters last, and add them all at the end: until then
what they are made of waits in memory. `schedule` has each made and added early.
"""

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
ACCUMULATORS = ("InPlaceAccumulator", "InPlaceAccumulatorV2")
LOOKS = ("Shape", "Size")
SHARED = -1
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


def prepare(graph: Graph, problems: Problems, seed: int | None = None) -> Graph:
    """The graph with constants for Constant nodes, shapes for gradients that need them, and states
    for nodes that draw."""
    graph = _with_shapes(_without_constants(graph, problems), problems)
    return _with_states(_with_early_shapes(graph), problems, seed)


def _with_early_shapes(graph: Graph) -> Graph:
    """Look at shapes as soon as there are arrays, so that no array waits for that."""
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
    return node.is_standard and node.op_type in LOOKS and len(node.inputs) == 1


def _with_states(graph: Graph, problems: Problems, seed: int | None) -> Graph:
    """Give each node that draws a state of the session's own: its seed, and how much it drew."""
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
    """The place of the state among a node's inputs; None of nodes that draw nothing."""
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
    """Give a pool's gradient the shape of the pool's X, which no input of it says."""
    pools = [node for node in graph.nodes if node.op_type in SHAPED.values() and node.inputs]
    forward = {name: node for node in pools for name in node.outputs}
    nodes, wanted = [], set()
    for node in graph.nodes:
        if len(node.inputs) == N_INPUTS.get(node.op_type):
            pool = _pool_of(node, forward)
            if pool is None:
                problems.add(node.title, "the pool that it is the gradient of is not there")
            else:
                name = pool.inputs[0] + SUFFIX
                wanted.add(pool.inputs[0])
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
    """The pool of a gradient: the maker of its indices, or the one that it is named after."""
    if node.op_type == "MaxPoolGrad":
        return forward.get(node.inputs[1])
    names = [n.removesuffix("_grad") for n in node.inputs]
    pool = next((forward[n] for n in names if n in forward), None)
    if pool is not None:
        return pool
    title = node.name.split("_Grad/")[0]
    return next((pool for pool in forward.values() if pool.name and pool.name == title), None)


# ---- the order of gradients ----------------------------------------------------------------------


def schedule(graph: Graph) -> Graph:
    """Make what one accumulator alone needs as soon as its inputs are there, but behind all other
    outputs: what those refuse comes before anything is added."""
    if not any(node.op_type in ACCUMULATORS for node in graph.nodes):
        return graph
    graph, n_first = _results_first(graph)
    makers = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs if name}
    cones = _cones(graph)
    read = {name for node in graph.nodes for name in node.inputs}
    inside = {i for cone in cones for i in cone}
    behind: dict[int, list[int]] = {}
    for cone in cones:
        needed = {makers.get(name, -1) for i in cone for name in graph.nodes[i].inputs}
        is_read = read.intersection(graph.nodes[cone[-1]].outputs)
        least = -1 if is_read else n_first - 1
        behind.setdefault(max(needed - set(cone) | {least}), []).extend(cone)
    order = list(behind.get(-1, ()))
    for i in range(len(graph.nodes)):
        order += [*([] if i in inside else [i]), *behind.get(i, ())]
    return graph.with_nodes(graph.nodes[i] for i in order)


def _results_first(graph: Graph) -> tuple[Graph, int]:
    """The graph with the nodes that outputs beside the sums need in front, and how many they are;
    shapes are looked at there, too."""
    sums = {o for node in graph.nodes if node.op_type in ACCUMULATORS for o in node.outputs}
    wanted = {item.name for item in graph.outputs} - sums
    for node in reversed(graph.nodes):
        if wanted.intersection(node.outputs):
            wanted.update(filter(None, node.inputs))
    late: set[str] = set()
    first: list[Node] = []
    behind: list[Node] = []
    for node in graph.nodes:
        is_first = bool(wanted.intersection(node.outputs))
        is_first |= node.op_type in LOOKS and not late.intersection(node.inputs)
        (first if is_first else behind).append(node)
        late.update(() if is_first else filter(None, node.outputs))
    return graph.with_nodes((*first, *behind)), len(first)


def _cones(graph: Graph) -> list[list[int]]:
    """For each accumulator the nodes that serve it alone, and itself, in their order."""
    readers: dict[str, set[int]] = {item.name: {SHARED} for item in graph.outputs}
    cones: dict[int, list[int]] = {}
    for i in reversed(range(len(graph.nodes))):
        node = graph.nodes[i]
        served = set().union(*(readers.get(name, set()) for name in node.outputs if name))
        if node.op_type in ACCUMULATORS:
            served = {i}
        serves = served.pop() if len(served) == 1 else SHARED
        if serves != SHARED:
            cones.setdefault(serves, []).append(i)
        for name in node.inputs:
            readers.setdefault(name, set()).add(serves)
    return [cone[::-1] for cone in cones.values()][::-1]
