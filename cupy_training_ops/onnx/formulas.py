# SPDX-License-Identifier: MIT
"""Operators of this package in place of formulas, as exporters write them where an opset has no
operator.

    d = Div(x, sqrt(2)); e = Erf(d); f = Add(e, 1); g = Mul(x, f); y = Mul(g, 0.5)
    y = Gelu(x)

    s = MatMul(q, Transpose(k)); p = Softmax(s); y = MatMul(p, v)
    y = FlashAttention(q, k, v)

A formula is replaced where nothing else reads a part of it. `known` is the graph, with the maker
and readers of each value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from ..dtypes import BFLOAT16, FLOAT16
from ..families.attention.operators import FlashAttention, max_width
from .graph import Extent, Graph, Node
from .passes import factor_of

_HALVES = (FLOAT16, BFLOAT16)
_WIDE = (1, 11)  # ONNX's numbers of float32 and float64


class _Formula(NamedTuple):
    """Nodes that compute a formula, and new ones in their place."""

    nodes: list[Node]  # the last one makes the result
    new: list[Node]


class _Known:
    """A graph, and by a value's name its maker (a node) and its readers; ends: its outputs.

    numbers: its constants but for the `parameters`, names, whose values will change.
    """

    def __init__(self, graph: Graph, parameters: Collection[str]) -> None:
        self.graph = graph
        self.numbers = {n: a for n, a in graph.constants.items() if n not in parameters}
        self.makers = {name: node for node in graph.nodes for name in node.outputs}
        self.ends = {item.name for item in graph.outputs}
        self.readers: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for name in node.inputs:
                self.readers.setdefault(name, []).append(node)

    def factor(self, node: Node) -> tuple[str, float] | None:
        """Return (x, number) of a node that computes x * number; None of other nodes."""
        return factor_of(self.numbers, node)

    def only_reader(self, node: Node) -> Node | None:
        """Return the only node that reads a node's first result; None if there are more, or none"""
        readers = self.readers.get(node.outputs[0], [])
        return readers[0] if len(readers) == 1 else None

    def maker(self, name: str, op_type: str) -> Node | None:
        """Return the node that makes a value if it is of ONNX's operator `op_type`, else None."""
        node = self.makers.get(name)
        return node if node is not None and is_plain(node, op_type) else None


def is_plain(node: Node, op_type: str) -> bool:
    """Return True of a node of ONNX's own operator `op_type`."""
    return node.op_type == op_type and node.is_standard


def fuse_formulas(graph: Graph, parameters: Collection[str]) -> Graph:
    """Return the graph with Gelu and FlashAttention in place of the nodes of their formulas.

    parameters: names of constants whose values will change, and so are no numbers of a formula.
    """
    known = _Known(graph, parameters)
    parts: set[int] = set()  # id() of nodes that go
    whole: dict[int, list[Node]] = {}  # new nodes by id() of the formula's last one
    for node in graph.nodes:
        read = FORMULAS.get(node.op_type) if node.is_standard else None
        formula = None if read is None else read(known, node)
        if formula is None:
            continue
        inner = {name for each in formula.nodes[:-1] for name in each.outputs}
        own = set(map(id, formula.nodes))
        is_alone = all(id(n) in own for name in inner for n in known.readers.get(name, ()))
        if is_alone and known.ends.isdisjoint(inner) and parts.isdisjoint(own):
            parts |= own
            whole[id(formula.nodes[-1])] = formula.new
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += whole.get(id(node), [] if id(node) in parts else [node])
    return graph.with_nodes(nodes)


def _gelu(known: _Known, erf: Node) -> _Formula | None:
    """Return the formula x 0.5 (1 + erf(x / sqrt(2))) around an Erf node; None if it is none.

    The three factors are in any order, as exporters write it before opset 20.
    """
    scaled = known.makers.get(erf.inputs[0])
    inside = None if scaled is None else known.factor(scaled)
    above = known.only_reader(erf)
    if scaled is None or inside is None or above is None or not _adds_one(known, above):
        return None
    product = known.only_reader(above)
    if not math.isclose(inside[1], math.sqrt(0.5), rel_tol=1e-3) or product is None:
        return None
    if product.op_type != "Mul" or not product.is_standard:
        return None
    x, nodes = inside[0], [scaled, erf, above, product]
    # The product is (1 + erf) by x, with 0.5 behind it, or by 0.5 x.
    other = product.inputs[product.inputs[0] == above.outputs[0]]
    if other == x:
        half = known.only_reader(product)
        read = None if half is None else known.factor(half)
        fits = half is not None and read is not None and read[1] == 0.5
        nodes.append(half or product)
    else:
        half = known.makers.get(other)
        fits = half is not None and known.factor(half) == (x, 0.5)
        nodes.insert(0, half or product)
    if not fits:
        return None
    gelu = Node("Gelu", "com.microsoft", 1, (x,), nodes[-1].outputs, {}, erf.name, erf.place)
    return _Formula(nodes, [gelu])


def _adds_one(known: _Known, node: Node) -> bool:
    """Return True if a node adds a constant scalar 1 to a value."""
    if node.op_type != "Add" or not node.is_standard:
        return False
    numbers = [known.numbers[n] for n in node.inputs if n in known.numbers]
    return len(numbers) == 1 and numbers[0].ndim == 0 and numbers[0] == 1


# ---- attention -----------------------------------------------------------------------------------


def _attention(known: _Known, softmax: Node) -> _Formula | None:
    """Return the formula Softmax(scale Q K^T + mask) V around a Softmax node; None if it is none.

    FlashAttention, which never has the scores in memory, replaces it for half types, and shapes
    that it takes; in wider types the scores' products are faster backward. The softmax may be of
    float32, between two Casts.
    """
    if softmax.attributes.get("axis", -1) not in (-1, 3):
        return None
    last, nodes = known.only_reader(softmax), [softmax]
    if last is not None and is_plain(last, "Cast"):
        nodes.append(last)
        last = known.only_reader(last)
    if last is None or not is_plain(last, "MatMul") or last.inputs[0] != nodes[-1].outputs[0]:
        return None
    read = _read_scores(known, softmax.inputs[0])
    if read is None:
        return None
    scores, mask, scale = read
    product = scores[0]
    q, own_q, of_q = _without_factors(known, product.inputs[0])
    k_turned, own_k, of_k = _without_factors(known, product.inputs[1])
    v, scale = last.inputs[1], scale * of_q * of_k
    if scale <= 0 or not _fits(known, (q, k_turned, v), mask):
        return None
    turn, own_turn = _turned_keys(known, k_turned, f"{last.outputs[0]}/keys")
    k = turn.inputs[0] if turn.attributes["perm"] == (0, 1, 2, 3) else turn.outputs[0]
    inputs = (q, k, v, *([mask] if mask else []))
    op, name = FlashAttention, softmax.name
    attention = Node(
        *(op.name, op.domain, op.since, inputs, last.outputs),
        *({"scale": scale}, name, last.place),
    )
    before = [n for n in (*own_q, *own_k, *own_turn) if len(known.readers[n.outputs[0]]) == 1]
    new = [attention] if k == turn.inputs[0] else [turn, attention]
    return _Formula([*before, *scores, *nodes, last], new)


def _read_scores(known: _Known, name: str) -> tuple[list[Node], str, float] | None:
    """Return how a Softmax's input `name` is computed as scale Q K^T + mask; None if it is not.

    How: (nodes from the product of Q and K on, the mask's name or "", scale).
    """
    nodes, mask = [], ""
    cast = known.maker(name, "Cast")
    if cast is not None:
        if cast.attributes.get("to") not in _WIDE:
            return None
        nodes.append(cast)
        name = cast.inputs[0]
    add = known.maker(name, "Add")
    candidates = (name,) if add is None else add.inputs
    for i, each in enumerate(candidates):
        inner, scaled, scale = _without_factors(known, each)
        product = known.maker(inner, "MatMul")
        if product is not None:
            if add is not None:
                nodes.append(add)
                mask = candidates[1 - i]
            return [product, *scaled[::-1], *nodes[::-1]], mask, scale
    return None


def _without_factors(known: _Known, name: str) -> tuple[str, list[Node], float]:
    """Return x, nodes and f where `name` is x * f, by nodes (the last one first) of Mul or Div."""
    nodes, whole = [], 1.0
    while (node := known.makers.get(name)) is not None and (read := known.factor(node)) is not None:
        nodes.append(node)
        name, whole = read[0], whole * read[1]
    return name, nodes, whole


def _turned_keys(known: _Known, name: str, result: str) -> tuple[Node, list[Node]]:
    """Return a Transpose node that makes K from the source of K^T, and the node it replaces, or []

    name: K^T. result: the name of K. If K^T is a Transpose, both are joined in one.
    """
    node = known.maker(name, "Transpose")
    perm = (0, 1, 2, 3) if node is None else tuple(node.attributes.get("perm", (3, 2, 1, 0)))
    source = name if node is None else node.inputs[0]
    turned = (perm[0], perm[1], perm[3], perm[2])
    version = known.makers[name].version if name in known.makers else 13
    own = [] if node is None else [node]
    return Node("Transpose", "", version, (source,), (result,), {"perm": turned}), own


def _fits(known: _Known, values: Sequence[str], mask: str) -> bool:
    """Return True if FlashAttention takes these: one half type, 4 dimensions, no broadcasting.

    values: names of Q, K^T and V. mask: a name, or "".
    """
    types, shapes = dict(known.graph.types), dict(known.graph.shapes)
    for name, array in known.graph.constants.items():
        types[name], shapes[name] = array.dtype, array.shape
    whole = [shapes.get(name, ()) for name in values]
    dtypes = {types.get(name) for name in (*values, *([mask] if mask else []))}
    if any(len(shape) != 4 for shape in whole) or len(dtypes) != 1:
        return False
    (q, k, v), dtype = whole, dtypes.pop()
    pairs = [*((q[i], n[i]) for n in (k, v) for i in (0, 1)), (q[3], k[2]), (k[3], v[2])]
    if dtype not in _HALVES or any(n is None or n != m for n, m in pairs):
        return False
    if not all(isinstance(n, int) and 1 <= n <= max_width(dtype) for n in (q[3], v[3])):
        return False
    return not mask or (mask in shapes and _repeats_to(shapes[mask], (*q[:3], k[3])))


def _repeats_to(shape: Sequence[Extent], whole: Sequence[Extent]) -> bool:
    """Return True if `shape` is known to broadcast to `whole`."""
    pairs = zip(reversed(shape), reversed(whole), strict=False)
    return len(shape) <= len(whole) and all(n == 1 or (n is not None and n == m) for n, m in pairs)


# By an operator that a formula has once, a function that reads the formula around such a node.
FORMULAS: Mapping[str, Callable[[_Known, Node], _Formula | None]] = {
    "Erf": _gelu,
    "Softmax": _attention,
}
