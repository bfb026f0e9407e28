# SPDX-License-Identifier: MIT
"""The order of a training graph's nodes.

Upstream's graphs make many gradients of parameters last, and add them all at the end: until then
what they are made of waits in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from .graph import Graph, Node

ACCUMULATORS = ("InPlaceAccumulator", "InPlaceAccumulatorV2")


def scheduled(graph: Graph) -> Graph:
    """What nothing but an accumulator needs is made as soon as what it is made of is there."""
    sinks = _sinks(graph)
    makers = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs if name}
    behind: dict[int, list[list[int]]] = {}
    for i, node in enumerate(graph.nodes):
        if node.op_type in ACCUMULATORS:
            cone, last = _cone(graph.nodes, makers, sinks, i)
            behind.setdefault(last, []).append(cone)
    done: set[int] = set()
    order: list[int] = []
    for i in range(-1, len(graph.nodes)):
        ready = [i] if i >= 0 and i not in sinks else []
        ready += [k for cone in behind.get(i, ()) for k in cone]
        order += [k for k in dict.fromkeys(ready) if k not in done]
        done.update(ready)
    return graph.with_nodes(graph.nodes[i] for i in order)


def _sinks(graph: Graph) -> set[int]:
    """Accumulators, and what serves them alone."""
    others = Counter(item.name for item in graph.outputs)
    found: set[int] = set()
    for i in reversed(range(len(graph.nodes))):
        node = graph.nodes[i]
        reads = [name for name in node.outputs if name and name in others]
        if node.op_type in ACCUMULATORS or (not reads and _is_read(graph.nodes, found, node)):
            found.add(i)
        else:
            others.update(node.inputs)
    return found


def _is_read(nodes: Sequence[Node], sinks: set[int], node: Node) -> bool:
    wanted = set(filter(None, node.outputs))
    return any(wanted.intersection(nodes[i].inputs) for i in sinks)


def _cone(
    nodes: Sequence[Node], makers: Mapping[str, int], sinks: set[int], end: int
) -> tuple[list[int], int]:
    """The sinks that one is made by, in their order, and the last other node that they need."""
    cone, last, waiting = {end}, -1, [end]
    while waiting:
        for name in nodes[waiting.pop()].inputs:
            i = makers.get(name, -1)
            if i not in sinks:
                last = max(last, i)
            elif i not in cone:
                cone.add(i)
                waiting.append(i)
    return sorted(cone), last
