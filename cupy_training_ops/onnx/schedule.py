# SPDX-License-Identifier: MIT
"""The order of a training graph's nodes.

Upstream's graphs make many gradients of parameters last, and add them all at the end: until then
what they are made of waits in memory.
"""

from __future__ import annotations

from .graph import Graph, Node

ACCUMULATORS = ("InPlaceAccumulator", "InPlaceAccumulatorV2")
LOOKS = ("Shape", "Size")
SHARED = -1


def scheduled(graph: Graph) -> Graph:
    """What nothing but one accumulator needs is made as soon as what it is made of is there, and
    all other outputs are: what they refuse comes before anything is added."""
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
    """The graph whose first nodes, so many, are those that outputs beside the sums are made by;
    and shapes that are looked at there."""
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
    """Of each accumulator the nodes that serve it alone, and itself, in their order."""
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
