# SPDX-License-Identifier: MIT
"""Gradients of products: matrices, convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from .rules import MICROSOFT, Site, Term, gradient


@gradient("Gemm")
def gemm(site: Site) -> Sequence[Term | None]:
    """Y = alpha A B + beta C: dA = alpha dY B^T, dB = alpha A^T dY, dC = beta sum of dY."""
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


@gradient("MatMul")
def matmul(site: Site) -> Sequence[Term | None]:
    """dA = dY B^T, dB = A^T dY, each summed over the batches that repeat it.

    A vector is a row on the left and a column on the right.
    """
    (dy,), (a, b) = site.dys, site.inputs
    ranks = site.rank(a), site.rank(b)
    left = site.op("Unsqueeze", a, site.ints(0)) if ranks[0] == 1 else a
    right = site.op("Unsqueeze", b, site.ints(1)) if ranks[1] == 1 else b
    left_out = [axis for axis, rank in zip((-2, -1), ranks, strict=True) if rank == 1]
    if left_out:
        dy = site.op("Unsqueeze", dy, site.ints(*left_out))
    da = db = None
    if site.wanted[0]:
        da = site.own("FusedMatMul", dy, right, transB=1)
        da = _sum_batches(site, da, a, ranks[0], ranks[1])
    if site.wanted[1] and ranks[0] > 2 and ranks[1] == 2:  # one product of all batches' rows
        rows, dy_rows = (site.op("Flatten", x, axis=ranks[0] - 1) for x in (a, dy))
        db = site.op("Gemm", rows, dy_rows, transA=1)
    elif site.wanted[1]:
        db = site.own("FusedMatMul", left, dy, transA=1)
        if ranks[1] == 1:
            db = site.op("Squeeze", db, site.ints(-1))
        db = _sum_batches(site, db, b, ranks[1], ranks[0])
    return [da, db]


def _sum_batches(site: Site, dx: Term, x: Term, own: int, other: int) -> Term:
    """The sum of a factor's gradient over batches; own, other: the factors' ranks."""
    if own == 2 and other <= 2:
        return dx
    batches, extents = site.extents(site.outputs[0]), site.extents(x)
    if own < 2 or batches is None or extents is None:
        return site.sum_from(dx, None, x)
    n_batches = max(own, other) - 2
    return site.sum_from(dx, (*batches[:n_batches], *extents[-2:]), x)


@gradient("Conv")
def conv(site: Site) -> Sequence[Term | None]:
    """dX, dW and dB of one node."""
    return _by_one_node(site, "ConvGrad")


@gradient("ConvTranspose")
def conv_transpose(site: Site) -> Sequence[Term | None]:
    """dX, dW and dB of one node."""
    return _by_one_node(site, "ConvTransposeGrad")


def _by_one_node(site: Site, op_type: str) -> Sequence[Term]:
    operands = site.dys[0], *site.inputs[:2]
    results = site.ops(3, op_type, *operands, domain=MICROSOFT, **site.node.attributes)
    return results[: len(site.inputs)]
