# SPDX-License-Identifier: MIT
"""The order of a training graph's nodes.

Upstream's graphs make many gradients of parameters last, and add them all at the end: until then
what they are made of waits in memory.
"""

from __future__ import annotations

from .graph import Graph

ACCUMULATORS = ("InPlaceAccumulator", "InPlaceAccumulatorV2")
SHARED = -1


def scheduled(graph: Graph) -> Graph:
    """What nothing but one accumulator needs is made as soon as what it is made of is there, and
    all other outputs are: what they refuse comes before anything is added."""
    makers = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs if name}
    cones, last = _cones(graph), _last_of_results(graph)
    read = {name for node in graph.nodes for name in node.inputs}
    inside = {i for cone in cones for i in cone}
    behind: dict[int, list[int]] = {}
    for cone in cones:
        needed = {makers.get(name, -1) for i in cone for name in graph.nodes[i].inputs}
        is_read = read.intersection(graph.nodes[cone[-1]].outputs)
        behind.setdefault(max(needed - set(cone) | {-1 if is_read else last}), []).extend(cone)
    order = list(behind.get(-1, ()))
    for i in range(len(graph.nodes)):
        order += [*([] if i in inside else [i]), *behind.get(i, ())]
    return graph.with_nodes(graph.nodes[i] for i in order)


def _last_of_results(graph: Graph) -> int:
    """The last node that outputs beside the sums are made by."""
    sums = {o for node in graph.nodes if node.op_type in ACCUMULATORS for o in node.outputs}
    wanted = {item.name for item in graph.outputs} - sums
    last = -1
    for i in reversed(range(len(graph.nodes))):
        if wanted.intersection(graph.nodes[i].outputs):
            wanted.update(filter(None, graph.nodes[i].inputs))
            last = max(last, i)
    return last


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
