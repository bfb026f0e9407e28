# SPDX-License-Identifier: MIT
"""Gradients of products: matrices, convolutions.

A rule's `site` is a forward node: site.inputs, site.outputs and site.dys (gradients of the outputs)
are values of the graph, site.op adds a node, site.own one of com.microsoft, site.wanted says which
inputs need a gradient. The rule returns a gradient for each input, None without one;
it may leave out the last ones.
"""

from __future__ import annotations

import string
from collections.abc import Sequence

import numpy as np

from ...dtypes import FLOAT32, FLOAT64
from ..graph import Extent
from .rules import INT64, MICROSOFT, UNDEFINED, Site, Term, gradient

DOTS = "..."
_WHOLE = "it computes with whole numbers: train the model before it is quantized"
UNDEFINED |= dict.fromkeys(
    ["ConvInteger", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat"], _WHOLE
)
UNDEFINED |= dict.fromkeys(["QLinearAdd", "QLinearConv", "QLinearMatMul", "QLinearMul"], _WHOLE)


@gradient("Gemm")
def gemm(site: Site) -> Sequence[Term | None]:
    """Y = alpha A B + beta C: dA = alpha dY B^T, dB = alpha A^T dY, dC = beta sum of dY.

    With transA, A^T is in place of A, and dA is the transpose: alpha B dY^T. So it is with transB.
    """
    dy, (a, b, *rest) = site.dys[0], site.inputs
    alpha, beta = site.attribute("alpha", 1.0), site.attribute("beta", 1.0)
    flip_a, flip_b = site.attribute("transA", 0), site.attribute("transB", 0)

    def product(left: Term, right: Term, flip_left: int, flip_right: int) -> Term:
        return site.op("Gemm", left, right, alpha=alpha, transA=flip_left, transB=flip_right)

    da = db = dc = None
    if site.wanted[0]:
        da = product(b, dy, flip_b, 1) if flip_a else product(dy, b, 0, 1 - flip_b)
    if site.wanted[1]:
        db = product(dy, a, 1, flip_a) if flip_b else product(a, dy, 1 - flip_a, 0)
    if rest and rest[0] is not None and site.wanted[2]:
        dc = site.sum_to(dy if beta == 1 else dy * beta, rest[0])
    return [da, db, dc]


@gradient("FusedMatMul", "MatMul", "TransposeMatMul")
def matmul(site: Site) -> Sequence[Term | None]:
    """Y = alpha A B: dA = alpha dY B^T, dB = alpha A^T dY.

    Each is summed over the batches that A or B was broadcast to. A vector A is a row, a vector B a
    column. Where A or B is transposed, so is its gradient.
    """
    (dy,), (a, b) = site.dys, site.inputs
    ranks = site.rank(a), site.rank(b)
    flip_a, flip_b = (
        site.attribute(name, 0) if rank > 1 else 0
        for name, rank in zip(("transA", "transB"), ranks, strict=True)
    )
    left, right = (_with_batches_first(site, x, i) for i, x in enumerate((a, b)))
    left = site.op("Unsqueeze", left, site.ints(0)) if ranks[0] == 1 else left
    right = site.op("Unsqueeze", right, site.ints(1)) if ranks[1] == 1 else right
    # Axes that dY lacks: the row's of a vector A, the column's of a vector B.
    left_out = [axis for axis, rank in zip((-2, -1), ranks, strict=True) if rank == 1]
    if left_out:
        dy = site.op("Unsqueeze", dy, site.ints(*left_out))
    da = db = None
    if site.wanted[0]:
        da = (
            _product(site, right, dy, flip_b, 1)
            if flip_a
            else _product(site, dy, right, 0, 1 - flip_b)
        )
        da = _batches_back(site, da, 0)
        da = _sum_batches(site, da, a, ranks[0], ranks[1])
    if site.wanted[1] and ranks[0] > 2 and ranks[1] == 2 and not flip_a:
        rows, dy_rows = (site.op("Flatten", x, axis=ranks[0] - 1) for x in (left, dy))
        # B is one matrix: its gradient over all batches is one product of their rows together.
        factors = (dy_rows, rows) if flip_b else (rows, dy_rows)
        db = site.op("Gemm", *factors, alpha=site.attribute("alpha", 1.0), transA=1)
    elif site.wanted[1]:
        db = (
            _product(site, dy, left, 1, flip_a)
            if flip_b
            else _product(site, left, dy, 1 - flip_a, 0)
        )
        db = site.op("Squeeze", db, site.ints(-1)) if ranks[1] == 1 else db
        db = _sum_batches(site, _batches_back(site, db, 1), b, ranks[1], ranks[0])
    return [da, db]


def _product(site: Site, left: Term, right: Term, flip_left: int, flip_right: int) -> Term:
    """Return alpha left right, each transposed in its last two dimensions if its flip is 1."""
    values = {"alpha": site.attribute("alpha", 1.0), "transA": flip_left, "transB": flip_right}
    return site.own("FusedMatMul", left, right, **values)


def _with_batches_first(site: Site, x: Term, place: int) -> Term:
    """Return factor `place` (0: A, 1: B) as (batch, M, K), where it is (M, batch, K).

    It is so if the node has transBatchA or transBatchB.
    """
    rank = site.rank(x)
    if not site.attribute(("transBatchA", "transBatchB")[place], 0) or rank < 3:
        return x
    return site.op("Transpose", x, perm=(*range(1, rank - 1), 0, rank - 1))


def _batches_back(site: Site, dx: Term, place: int) -> Term:
    """Return the gradient (batch, M, K) of factor `place` as (M, batch, K), if the factor is so."""
    rank = site.rank(site.inputs[place])
    if not site.attribute(("transBatchA", "transBatchB")[place], 0) or rank < 3:
        return dx
    return site.op("Transpose", dx, perm=(rank - 2, *range(rank - 2), rank - 1))


def _sum_batches(site: Site, dx: Term, x: Term, own: int, other: int) -> Term:
    """Return dx summed over the batches that the factor x was broadcast to.

    own, other: the ranks of x and of the other factor.
    """
    if own == 2 and other <= 2:
        return dx
    batches, extents = site.extents(site.outputs[0]), site.extents(x)
    if own < 2 or batches is None or extents is None:
        return site.sum_from(dx, None, x)
    n_batches = max(own, other) - 2
    return site.sum_from(dx, (*batches[:n_batches], *extents[-2:]), x)


@gradient("Det")
def determinant(site: Site) -> Sequence[Term | None]:
    """dX = dy times the matrix of X's cofactors (det(X) X^-T), by one node."""
    x = site.inputs[0]
    return [site.own("DetGrad", site.dys[0], x, dtype=site.dtype(x))]


@gradient("Conv")
def conv(site: Site) -> Sequence[Term | None]:
    """dX, dW and dB by one node, ConvGrad(dY, X, W)."""
    return _by_one_node(site, "ConvGrad")


@gradient("ConvTranspose")
def conv_transpose(site: Site) -> Sequence[Term | None]:
    """dX, dW and dB by one node, ConvTransposeGrad(dY, X, W)."""
    return _by_one_node(site, "ConvTransposeGrad")


def _by_one_node(site: Site, op_type: str) -> Sequence[Term]:
    """Return dX, dW and, if the node has B, dB by a node of this operator."""
    operands = site.dys[0], *site.inputs[:2]
    results = site.ops(3, op_type, *operands, domain=MICROSOFT, **site.node.attributes)
    return results[: len(site.inputs)]


# ---- einsum --------------------------------------------------------------------------------------


@gradient("Einsum")
def einsum(site: Site) -> Sequence[Term | None]:
    """dx = Einsum(dy, the other operands), with the letters of x as its result's.

    ij,jk->ik    dA = ik,jk->ij, dB = ij,ik->jk
    ij->i        what no other has is repeated: dA = dy[i, 1]
    ii->i        a diagonal is put back by a unit matrix: dA = i,ij->ij
    """
    terms, result = _read_equation(site)
    return [
        _of_operand(site, place, terms, result) if is_wanted else None
        for place, is_wanted in enumerate(site.wanted)
    ]


def _read_equation(site: Site) -> tuple[list[str], str]:
    """Return each operand's letters and the result's, with unused letters in place of `...`.

    "...i,ij->...j" of ranks 3 and 2: (["abi", "ij"], "abj"). An equation without -> gets a result.
    """
    left, arrow, result = site.node.attributes["equation"].replace(" ", "").partition("->")
    terms = left.split(",")
    free = [letter for letter in string.ascii_letters if letter not in left]
    counts = [  # how many axes of each operand `...` stands for
        site.rank(x) - len(term) + len(DOTS) if DOTS in term else 0
        for term, x in zip(terms, site.inputs, strict=True)
    ]
    covered = "".join(free[: max(counts)])
    if not arrow:
        letters = left.replace(",", "").replace(DOTS, "")
        result = DOTS + "".join(c for c in sorted(set(letters)) if letters.count(c) == 1)
    each = [
        term.replace(DOTS, covered[len(covered) - n :])
        for term, n in zip(terms, counts, strict=True)
    ]
    return each, result.replace(DOTS, covered)


def _of_operand(site: Site, place: int, terms: Sequence[str], result: str) -> Term:
    """Return the gradient of operand `place`.

    terms: each operand's letters. result: the result's. "ij,jk->ik": ["ij", "jk"], "ik".
    """
    x, own = site.inputs[place], terms[place]
    free = (c for c in string.ascii_letters if not any(c in term for term in (*terms, result)))
    operands = [(site.dys[0], result)]
    operands += [(site.inputs[i], term) for i, term in enumerate(terms) if i != place]
    letters: list[str] = []
    for axis, letter in enumerate(own):
        if letter in letters:  # a diagonal: ii is read as ij, times a unit matrix ij
            other = next(free)
            operands.append((_unit_matrix(site, x, axis), letter + other))
            letter = other
        letters.append(letter)
    there = "".join(letter for letter in letters if any(letter in term for _, term in operands))
    dx: Term = operands[0][0]
    if [term for _, term in operands] != [there]:
        equation = ",".join(term for _, term in operands) + "->" + there
        dx = site.op("Einsum", *(operand for operand, _ in operands), equation=equation)
    missing = [axis for axis, letter in enumerate(letters) if letter not in there]
    if missing:
        dx = site.op("Unsqueeze", dx, site.ints(*missing))
    beside = _extents_beside(site, place, terms)
    known = site.extents(x) or (None,) * len(own)
    pairs = list(zip(own, known, strict=True))
    if missing or any(c not in result and _may_grow(n, beside[c]) for c, n in pairs):
        dx = site.op("Expand", dx, site.shape(x))
    if not any(_may_shrink(n, beside[c]) for c, n in pairs):
        return dx
    whole = [next((m for m in beside[c] if m not in (1, n)), n) for c, n in pairs]
    return site.sum_from(dx, whole if site.extents(x) else None, x)


def _extents_beside(site: Site, place: int, terms: Sequence[str]) -> dict[str, list[Extent]]:
    """Return {letter of operand `place`: its extents in the other operands}, None if unknown.

    terms: each operand's letters.
    """
    extents: dict[str, list[Extent]] = {letter: [] for letter in terms[place]}
    for i, (x, term) in enumerate(zip(site.inputs, terms, strict=True)):
        known = site.extents(x) or (None,) * len(term)
        for letter, n in zip(term, known, strict=True):
            if i != place and letter in extents:
                extents[letter].append(n)
    return extents


def _may_grow(n: Extent, others: Sequence[Extent]) -> bool:
    """Return True if the others of an axis of extent n may all be 1, and so their product."""
    if n == 1 or not others:
        return False
    return all(m in (1, None) or (isinstance(m, str) and m != n) for m in others)


def _may_shrink(n: Extent, others: Sequence[Extent]) -> bool:
    """Return True if an axis of extent n may be 1, and be broadcast to an extent of others."""
    is_known = isinstance(n, int) and n != 1
    return not is_known and any(m is None or m not in (1, n) for m in others)


def _unit_matrix(site: Site, x: Term, axis: int) -> Term:
    """Return an n x n unit matrix of x's type, n the extent of x along an axis."""
    shape = site.op("Shape", x, dtype=INT64)
    zero, one = (site.constant(np.array(n, INT64)) for n in (0, 1))
    n = site.op("Gather", shape, site.constant(np.array(axis, INT64)), axis=0)
    values = site.constant(np.array([0, 1], site.dtype(x)))
    return site.op("OneHot", site.op("Range", zero, n, one), n, values, dtype=site.dtype(x))


@gradient("FlashAttention")
def flash_attention(site: Site) -> Sequence[Term | None]:
    """dQ, dK, dV and, if it is needed, dmask by one node, FlashAttentionGrad.

    It reads the log-sum-exp of the scores' rows, output 1. dmask has the scores' shape there, and
    is summed to the mask's.
    """
    q, k, v, mask, lengths = (*site.inputs, None, None)[:5]
    dtype = site.dtype(q)
    lse = site.extra_output(1, FLOAT64 if dtype == FLOAT64 else FLOAT32)
    with_mask = mask is not None and site.wanted[3]
    gradients = site.ops(
        3 + with_mask,
        "FlashAttentionGrad",
        *(site.dy, q, k, v, site.outputs[0], lse, mask, lengths),
        domain=site.node.domain,
        dtype=dtype,
        **site.node.attributes,
        mask_gradient=int(with_mask),
    )
    if not with_mask:
        return gradients
    d_mask = gradients[3]
    if site.attribute("pads_mask", 0):  # the mask's last axis may be shorter than the keys'
        ends = site.dims((mask, -1))
        d_mask = site.op("Slice", d_mask, site.ints(0), ends, site.ints(3))
    return [*gradients[:3], site.sum_from(d_mask, None, mask)]
