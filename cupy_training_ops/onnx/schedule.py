# SPDX-License-Identifier: MIT
"""The order of a training graph's nodes, and products that are written as they are needed.

Upstream's graphs make many gradients of parameters last, and add them all at the end: until then
what they are made of waits in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .graph import Graph, Node

ACCUMULATORS = ("InPlaceAccumulator", "InPlaceAccumulatorV2")
PRODUCTS = ("Conv", "ConvTranspose", "FusedMatMul", "Gemm", "MatMul")
GRADIENTS = ("ConvGrad", "ConvTransposeGrad")


def with_tf32(graph: Graph) -> Graph:
    """Products of float32 by TF32, where there are units for it."""
    return graph.with_nodes(
        replace(node, attributes={**node.attributes, "allow_tf32": 1})
        if node.op_type in (*PRODUCTS, *GRADIENTS)
        else node
        for node in graph.nodes
    )


def scheduled(graph: Graph) -> Graph:
    """The graph with gradients of parameters made and added as soon as they can be."""
    return _with_early_sums(_with_turned_products(graph))


def _with_turned_products(graph: Graph) -> Graph:
    """A product that is needed transposed alone is that of the transposed factors."""
    reads = Counter(name for node in graph.nodes for name in node.inputs)
    reads.update(item.name for item in graph.outputs)
    products = {node.outputs[0]: node for node in graph.nodes if _is_plain_gemm(node)}
    turned = {
        node.inputs[0]: node.outputs[0]
        for node in graph.nodes
        if _turns(node) and node.inputs[0] in products and reads[node.inputs[0]] == 1
    }
    gone = set(turned.values())
    return graph.with_nodes(
        _turned(node, turned[node.outputs[0]]) if node.outputs[:1] and node.outputs[0] in turned
        else node
        for node in graph.nodes
        if not gone.intersection(node.outputs)
    )  # fmt: skip


def _is_plain_gemm(node: Node) -> bool:
    return node.op_type == "Gemm" and node.is_standard and not any(node.inputs[2:])


def _turns(node: Node) -> bool:
    perm = node.attributes.get("perm")
    return node.op_type == "Transpose" and node.is_standard and list(perm or ()) == [1, 0]


def _turned(node: Node, name: str) -> Node:
    """The product of the transposed factors in the other order."""
    known = node.attributes
    flags = {"transA": 1 - known.get("transB", 0), "transB": 1 - known.get("transA", 0)}
    a, b = node.inputs[:2]
    return replace(node, inputs=(b, a), outputs=(name,), attributes={**known, **flags})


def _with_early_sums(graph: Graph) -> Graph:
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
