# SPDX-License-Identifier: MIT
"""Products of matrices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .arrays import HALVES, wide
from .elementwise import refuse_mixed, scalar
from .table import standard

Array = Any
Module = Any


@standard("MatMul")
def matmul(xp: Module, a: Array, b: Array, *, allow_tf32: bool = False) -> Array:
    return product(xp, a, b, tf32=allow_tf32)


def product(
    xp: Module, a: Array, b: Array, alpha: float = 1.0, tf32: bool = False, out: Array = None
) -> Array:
    """alpha a @ b; one of a batch with one matrix is a single large one."""
    refuse_mixed(a, b)
    if xp.__name__ == "cupy" and 1 in (a.ndim, b.ndim) and a.ndim and b.ndim:
        return _of_vectors(xp, a, b, alpha, tf32)
    if xp.__name__ == "cupy":
        from .. import cublas

        if cublas.fits((a, b)):
            return cublas.product(a, b, alpha=alpha, tf32=bool(tf32), out=out)
    elif a.dtype in HALVES:  # of which NumPy makes float32, or has no BLAS
        y = product(xp, wide(a), wide(b), alpha).astype(a.dtype)
        if out is None:
            return y
        out[...] = y
        return out
    if a.ndim and b.ndim and a.shape[-1] != b.shape[max(b.ndim - 2, 0)]:
        raise ValueError(f"expected shapes that can be multiplied, got {a.shape} and {b.shape}")
    if b.ndim == 2 and a.ndim > 2 and a.flags.c_contiguous:
        rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
        y = xp.matmul(rows, b).reshape(*a.shape[:-1], b.shape[-1])
    else:
        y = xp.matmul(a, b, out=out)
    if alpha != 1 and y.dtype.kind in "iu":
        return _multiply(y, alpha)
    if alpha != 1:
        y *= scalar(y, alpha)
    return y


def _of_vectors(xp: Module, a: Array, b: Array, alpha: float, tf32: bool) -> Array:
    """A vector is a matrix of one row in front, of one column behind, whose extent is left out."""
    rows = a[None] if a.ndim == 1 else a
    columns = b[:, None] if b.ndim == 1 else b
    y = product(xp, rows, columns, alpha, tf32)
    y = y[..., 0, :] if a.ndim == 1 else y
    return y[..., 0] if b.ndim == 1 else y


@standard("Gemm")
def gemm(
    xp: Module,
    a: Array,
    b: Array,
    c: Array = None,
    out: Array = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: bool = False,  # noqa: N803
    transB: bool = False,  # noqa: N803
    broadcast: bool = True,
    allow_tf32: bool = False,
) -> Array:
    y = product(xp, a.T if transA else a, b.T if transB else b, alpha, allow_tf32, out)
    if c is not None:
        y += c if beta == 1 else _multiply(c, beta)
    return y


def _multiply(x: Array, factor: float) -> Array:
    """x factor; of integers the part before the point."""
    if x.dtype.kind in "iu":
        return (x * factor).astype(x.dtype)
    return x * scalar(x, factor)


@standard("FusedMatMul", "TransposeMatMul")
def fused_matmul(
    xp: Module,
    a: Array,
    b: Array,
    *,
    alpha: float = 1.0,
    transA: bool = False,  # noqa: N803
    transB: bool = False,  # noqa: N803
    transBatchA: bool = False,  # noqa: N803
    transBatchB: bool = False,  # noqa: N803
    allow_tf32: bool = False,
    transY: bool = False,  # noqa: N803
) -> Array:
    """With transBatch the first dimension is the one before last: (M, batch, K). With transY, which
    is of this package's own, the result's last two dimensions are swapped."""
    a, b = _transpose(xp, a, transA, transBatchA), _transpose(xp, b, transB, transBatchB)
    if transY and a.ndim > 1 and b.ndim > 1:
        return product(xp, b.swapaxes(-1, -2), a.swapaxes(-1, -2), alpha, allow_tf32)
    y = product(xp, a, b, alpha, allow_tf32)
    return y.swapaxes(-1, -2) if transY else y


def _transpose(xp: Module, x: Array, last: int, batch: int) -> Array:
    if batch and x.ndim > 2:
        x = xp.moveaxis(x, 0, -2)
    return x.swapaxes(-1, -2) if last and x.ndim > 1 else x


@standard("Einsum", keeps=True)
def einsum(xp: Module, *arrays: Array, equation: str) -> Array:
    if xp is np:  # whose sums are of the arrays' type
        return xp.einsum(equation, *map(wide, arrays)).astype(arrays[0].dtype, copy=False)
    return xp.einsum(equation, *arrays)
