# SPDX-License-Identifier: MIT
"""Rotary position embeddings in NumPy. Formulas: `operators.py`."""

from __future__ import annotations

import math

import numpy as np

from ...dtypes import HostArray
from ...rules.pieces import PIECE, put, working_type
from ...rules.widening import quiet


@quiet
def rotary_halves(x: HostArray, cos: HostArray, sin: HostArray, *, heads_last: bool) -> HostArray:
    """Return Y: x rotated by cos and sin (1 or batch, rows, width).

    x: (batch, heads, rows, width), or (batch, rows, heads, width) with heads_last.
    """
    return _rotated(x, cos, sin, heads_last, is_gradient=False)


@quiet
def rotary_halves_grad(
    dy: HostArray, cos: HostArray, sin: HostArray, *, heads_last: bool
) -> HostArray:
    """Return dX: dy, of the shape of dX, by the transposed matrices of rotary_halves."""
    return _rotated(dy, cos, sin, heads_last, is_gradient=True)


def _rotated(
    x: HostArray, cos: HostArray, sin: HostArray, heads_last: bool, *, is_gradient: bool
) -> HostArray:
    """Return x, rotated some rows at a time; with is_gradient by the transposed matrices."""
    y, kind, half = np.empty(x.shape, x.dtype), working_type(x), x.shape[-1] // 2
    axis = 1 if heads_last else 2
    step = max(1, PIECE // max(1, math.prod(x.shape[1:]) // max(1, x.shape[axis])))
    for batch in range(x.shape[0]):
        angles = batch if len(cos) > 1 else 0
        for first in range(0, x.shape[axis], step):
            some = slice(first, first + step)
            place = (batch, some) if heads_last else (batch, slice(None), some)
            one, other = _halves(x[place], half, kind)
            (cos1, cos2), (sin1, sin2) = (
                _halves(each[angles, some, None] if heads_last else each[angles, some], half, kind)
                for each in (cos, sin)
            )
            if is_gradient:
                sin1, sin2 = -sin2, -sin1
            put(y[place][..., :half], one * cos1 - other * sin1)
            put(y[place][..., half:], other * cos2 + one * sin2)
    return y


def _halves(x: HostArray, half: int, kind: np.dtype) -> tuple[HostArray, HostArray]:
    """Return the first `half` elements of x's rows and the others, in the type `kind`."""
    return x[..., :half].astype(kind, copy=False), x[..., half:].astype(kind, copy=False)
