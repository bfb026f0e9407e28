# SPDX-License-Identifier: MIT
"""Products of a graph that do what is written around them: transpose, scale, round to TF32."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from ..dtypes import HostArray
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


def fuse_products(graph: Graph) -> Graph:
    """Take transposes and factors beside products of matrices into the products.

    Mul(MatMul(Transpose(a), b), 0.5) becomes FusedMatMul(a, b, transA=1, alpha=0.5).
    """
    graph = _without_other_names(graph)
    graph = _fold_readers(graph, _is_product, _transposed_input, _transpose_product)
    graph = _with_transposed_factors(graph)
    graph = _fold_readers(graph, _has_alpha, partial(_factor_of, graph.constants), _with_alpha)
    return _with_scaled_factors(graph)


def _fold_readers(
    graph: Graph,
    is_product: Callable[[Node], bool],
    read: Callable[[Node], tuple[str, float] | None],
    fold: Callable[[Node, float], Node],
) -> Graph:
    """Fold the only reader of a product into it.

    read: the value that a node transposes or multiplies, and the number that `fold` needs.
    """
    reads = _reads(graph)
    products = {node.outputs[0] for node in graph.nodes if is_product(node)}
    readers: dict[str, tuple[str, float]] = {}
    for node in graph.nodes:
        work = read(node)
        if work is not None and work[0] in products and reads[work[0]] == 1:
            readers[work[0]] = node.outputs[0], work[1]
    outputs = {output for output, _ in readers.values()}
    nodes = []
    for node in graph.nodes:
        if outputs.intersection(node.outputs):
            continue
        if node.outputs[:1] and node.outputs[0] in readers:
            output, number = readers[node.outputs[0]]
            node = fold(replace(node, outputs=(output,)), number)
        nodes.append(node)
    return graph.with_nodes(nodes)


def _without_other_names(graph: Graph) -> Graph:
    """Call a value by its first name alone, without Identity nodes inside of the graph."""
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


def _is_plain_gemm(node: Node) -> bool:
    return node.op_type == "Gemm" and node.is_standard and not any(node.inputs[2:])


def _is_product(node: Node) -> bool:
    """Return True if a node is a product of matrices, or of batches of them in front."""
    return _is_plain_gemm(node) or (node.op_type == "FusedMatMul" and not _swaps_batch(node))


def _swaps_batch(node: Node) -> bool:
    return bool(node.attributes.get("transBatchA") or node.attributes.get("transBatchB"))


def _is_transpose(node: Node) -> bool:
    """Return True if a node swaps the last two dimensions alone."""
    perm = list(node.attributes.get("perm") or ())
    rank = len(perm)
    last = [*range(rank - 2), rank - 1, rank - 2]
    return node.op_type == "Transpose" and node.is_standard and rank > 1 and perm == last


def _transposed_input(node: Node) -> tuple[str, float] | None:
    return (node.inputs[0], 1) if _is_transpose(node) else None


def _transpose_product(node: Node, _: float) -> Node:
    """(A B)^T = B^T A^T; where A or B may be a vector, transY decides that as it runs."""
    attributes = node.attributes
    if node.op_type == "FusedMatMul":
        return replace(node, attributes={**attributes, "transY": 1})
    flags = {"transA": not attributes.get("transB"), "transB": not attributes.get("transA")}
    a, b = node.inputs[:2]
    return replace(node, inputs=(b, a), attributes={**attributes, **flags})


def _with_transposed_factors(graph: Graph) -> Graph:
    """Read factors as they are, with transA and transB, in place of transposed ones."""
    sources = {node.outputs[0]: node.inputs[0] for node in graph.nodes if _is_transpose(node)}
    changed = graph.with_nodes(
        _of_sources(node, sources) if _has_alpha(node) else node for node in graph.nodes
    )
    reads = _reads(changed)
    return changed.with_nodes(
        node for node in changed.nodes if not _is_transpose(node) or reads[node.outputs[0]]
    )


def _of_sources(node: Node, sources: Mapping[str, str]) -> Node:
    """The product of the sources of its transposed factors."""
    flags = [bool(node.attributes.get(f"trans{x}")) for x in "AB"]  # any integer but 0
    are_transposed = [name in sources for name in node.inputs[:2]]
    if _swaps_batch(node) or not any(are_transposed):
        return node
    inputs = tuple(sources.get(name, name) for name in node.inputs[:2])
    new = [flag ^ swaps for flag, swaps in zip(flags, are_transposed, strict=True)]
    product = _with_alpha(replace(node, inputs=(*inputs, *node.inputs[2:])), 1.0)
    attributes = {**product.attributes, "transA": new[0], "transB": new[1]}
    return replace(product, attributes=attributes)


def _with_scaled_factors(graph: Graph) -> Graph:
    """Multiply values that products alone read by the products' alphas."""
    outside = {item.name for item in graph.outputs}
    for node in graph.nodes:
        outside.update(() if _has_alpha(node) else node.inputs)
    reads = _reads(graph)
    scaled: dict[str, tuple[str, float]] = {}
    for node in graph.nodes:
        factor = _factor_of(graph.constants, node)
        name = node.outputs[0] if node.outputs else ""
        if factor is not None and name not in outside and reads[name]:
            scaled[name] = factor
    return graph.with_nodes(_without_factors(graph, scaled))


def _without_factors(graph: Graph, scaled: Mapping[str, tuple[str, float]]) -> Iterator[Node]:
    """The nodes without those that multiply by a number, which the products do instead."""
    for node in graph.nodes:
        if node.outputs[:1] and node.outputs[0] in scaled:
            continue
        scale = math.prod(scaled[n][1] for n in node.inputs if n in scaled)
        inputs = tuple(scaled[n][0] if n in scaled else n for n in node.inputs)
        if inputs != node.inputs:
            node = replace(_with_alpha(node, scale) if scale != 1 else node, inputs=inputs)
        yield node


def _reads(graph: Graph) -> Counter[str]:
    reads = Counter(name for node in graph.nodes for name in node.inputs)
    reads.update(item.name for item in graph.outputs)
    return reads


def _has_alpha(node: Node) -> bool:
    """Return True if a node is a product that can be multiplied by a number."""
    if node.op_type == "Gemm":
        return _is_plain_gemm(node)
    return node.op_type in ("MatMul", "FusedMatMul") and len(node.outputs) == 1


def _with_alpha(node: Node, scale: float) -> Node:
    alpha = node.attributes.get("alpha", 1.0) * scale
    attributes = {**node.attributes, "alpha": alpha}
    if node.op_type == "MatMul":
        return replace(node, op_type="FusedMatMul", domain="com.microsoft", attributes=attributes)
    return replace(node, attributes=attributes)


def _factor_of(constants: Mapping[str, HostArray], node: Node) -> tuple[str, float] | None:
    """The value that a node multiplies by a number, and the number."""
    if not node.is_standard or node.op_type not in ("Div", "Mul") or len(node.inputs) != 2:
        return None
    x, y = node.inputs
    if node.op_type == "Mul" and y not in constants:
        x, y = y, x
    array = constants.get(y)  # a factor of shape (1,) makes a vector of a scalar
    if array is None or array.ndim or array.dtype.kind != "f":
        return None
    number = float(array.reshape(-1)[0])
    scale = number if node.op_type == "Mul" else (1 / number if number else math.nan)
    return (x, scale) if math.isfinite(scale) and scale else None
