# SPDX-License-Identifier: MIT
"""Products of a graph that do what is written around them: transpose, scale, round to TF32."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from .graph import Graph, Node

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


def with_whole_products(graph: Graph) -> Graph:
    """The graph with products that give what is needed of them, in place of what is made of it."""
    graph = _with_turned_products(_without_other_names(graph))
    return _with_scaled_factors(_with_scaled_products(_with_turned_factors(graph)))


def _without_other_names(graph: Graph) -> Graph:
    """What is called by two names inside of the graph has the first one alone."""
    outputs = {item.name for item in graph.outputs}
    names: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        inputs = tuple(names.get(name, name) for name in node.inputs)
        if node.op_type == "Identity" and node.is_standard and node.outputs[0] not in outputs:
            names[node.outputs[0]] = inputs[0]
        else:
            nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))
    return graph.with_nodes(nodes)


def _with_turned_products(graph: Graph) -> Graph:
    """A product that is needed transposed alone is that of the transposed factors."""
    reads = _reads(graph)
    products = {node.outputs[0]: node for node in graph.nodes if _can_be_turned(node)}
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


def _can_be_turned(node: Node) -> bool:
    """Whether a node is a product of matrices, or of batches of them in front."""
    moves = node.attributes.get("transBatchA") or node.attributes.get("transBatchB")
    return _is_plain_gemm(node) or (node.op_type == "FusedMatMul" and not moves)


def _turns(node: Node) -> bool:
    """Whether a node swaps the last two dimensions alone."""
    perm = list(node.attributes.get("perm") or ())
    rank = len(perm)
    last = [*range(rank - 2), rank - 1, rank - 2]
    return node.op_type == "Transpose" and node.is_standard and rank > 1 and perm == last


def _turned(node: Node, name: str) -> Node:
    """The product of the transposed factors in the other order; of one whose factors may be
    vectors this is found out as it runs."""
    known = node.attributes
    if node.op_type == "FusedMatMul":
        return replace(node, outputs=(name,), attributes={**known, "transY": 1})
    flags = {"transA": not known.get("transB"), "transB": not known.get("transA")}
    a, b = node.inputs[:2]
    return replace(node, inputs=(b, a), outputs=(name,), attributes={**known, **flags})


def _with_turned_factors(graph: Graph) -> Graph:
    """Products that read factors as they are, in place of transposed ones."""
    sources = {node.outputs[0]: node.inputs[0] for node in graph.nodes if _turns(node)}
    changed = graph.with_nodes(
        _of_sources(node, sources) if _has_alpha(node) else node for node in graph.nodes
    )
    reads = _reads(changed)
    return changed.with_nodes(
        node for node in changed.nodes if not _turns(node) or reads[node.outputs[0]]
    )


def _of_sources(node: Node, sources: Mapping[str, str]) -> Node:
    """A product of what these values are transposed of."""
    flags = [bool(node.attributes.get(f"trans{x}")) for x in "AB"]  # any integer but 0
    turned = [name in sources for name in node.inputs[:2]]
    moves = node.attributes.get("transBatchA") or node.attributes.get("transBatchB")
    if moves or not any(turned):
        return node
    inputs = tuple(sources.get(name, name) for name in node.inputs[:2])
    known = {f"trans{x}": flag ^ turns for x, flag, turns in zip("AB", flags, turned, strict=True)}
    found = _with_alpha(replace(node, inputs=(*inputs, *node.inputs[2:])), 1.0)
    return replace(found, attributes={**found.attributes, **known})


def _with_scaled_products(graph: Graph) -> Graph:
    """A product that is divided by a number, or multiplied, is one with an alpha."""
    reads = _reads(graph)
    products = {node.outputs[0]: node for node in graph.nodes if _has_alpha(node)}
    scaled: dict[str, tuple[str, float]] = {}
    for node in graph.nodes:
        found = _scale_of(graph, node)
        if found is not None and found[0] in products and reads[found[0]] == 1:
            scaled[found[0]] = node.outputs[0], found[1]
    gone = {name for name, _ in scaled.values()}
    return graph.with_nodes(
        _with_alpha(replace(node, outputs=scaled[node.outputs[0]][:1]), scaled[node.outputs[0]][1])
        if node.outputs[:1] and node.outputs[0] in scaled
        else node
        for node in graph.nodes
        if not gone.intersection(node.outputs)
    )


def _with_scaled_factors(graph: Graph) -> Graph:
    """What is scaled for products alone is scaled by their alphas."""
    outside = {item.name for item in graph.outputs}
    for node in graph.nodes:
        outside.update(() if _has_alpha(node) else node.inputs)
    reads = _reads(graph)
    scaled: dict[str, tuple[str, float]] = {}
    for node in graph.nodes:
        found = _scale_of(graph, node)
        name = node.outputs[0] if node.outputs else ""
        if found is not None and name not in outside and reads[name]:
            scaled[name] = found
    return graph.with_nodes(_unscaled(graph, scaled))


def _unscaled(graph: Graph, scaled: Mapping[str, tuple[str, float]]) -> Iterator[Node]:
    """The nodes without those that scale; products have their scale."""
    for node in graph.nodes:
        if node.outputs[:1] and node.outputs[0] in scaled:
            continue
        scale = math.prod(scaled[n][1] for n in node.inputs if n in scaled)
        inputs = tuple(scaled[n][0] if n in scaled else n for n in node.inputs)
        if inputs != node.inputs:
            node = replace(_with_alpha(node, scale) if scale != 1 else node, inputs=inputs)
        yield node


def _reads(graph: Graph) -> Counter[str]:
    found = Counter(name for node in graph.nodes for name in node.inputs)
    found.update(item.name for item in graph.outputs)
    return found


def _has_alpha(node: Node) -> bool:
    """Whether a node is a product that can be multiplied by a number."""
    if node.op_type == "Gemm":
        return _is_plain_gemm(node)
    return node.op_type in ("MatMul", "FusedMatMul") and len(node.outputs) == 1


def _with_alpha(node: Node, scale: float) -> Node:
    alpha = node.attributes.get("alpha", 1.0) * scale
    known = {**node.attributes, "alpha": alpha}
    if node.op_type == "MatMul":
        return replace(node, op_type="FusedMatMul", domain="com.microsoft", attributes=known)
    return replace(node, attributes=known)


def _scale_of(graph: Graph, node: Node) -> tuple[str, float] | None:
    """What a node multiplies by a number, and the number."""
    if not node.is_standard or node.op_type not in ("Div", "Mul") or len(node.inputs) != 2:
        return None
    x, y = node.inputs
    if node.op_type == "Mul" and y not in graph.constants:
        x, y = y, x
    array = graph.constants.get(y)  # a factor of shape (1,) makes a vector of a scalar
    if array is None or array.ndim or array.dtype.kind != "f":
        return None
    number = float(array.reshape(-1)[0])
    scale = number if node.op_type == "Mul" else (1 / number if number else math.nan)
    return (x, scale) if math.isfinite(scale) and scale else None
