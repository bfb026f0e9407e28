# SPDX-License-Identifier: MIT
"""Scaling, division, quantisation, finiteness in NumPy. Formulas: `ops/elementwise.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dtypes import FLOAT64
from ..numerics import cast, rounded, wide

Array = NDArray[Any]

# Division by zero, overflow and NaN are what IEEE 754 says they are.
_quiet = np.errstate(all="ignore")


def _scaled(x: Array, scale: float) -> Array:
    return np.asarray(wide(x) * scale)


def _summed(x: Array, like: Array) -> Array:
    """x summed over the dimensions that `like` is repeated along, in float64, in its shape."""
    if x.size == like.size:  # a sum that begins with 0 would lose the sign of -0.0
        return x.reshape(like.shape).astype(like.dtype)
    lead = x.ndim - like.ndim
    ones = (d for d, extent in enumerate(like.shape, lead) if extent == 1 != x.shape[d])
    total = np.sum(x, axis=(*range(lead), *ones), dtype=FLOAT64)
    return cast(total.reshape(like.shape), like.dtype)


@_quiet
def scale(input_: Array, scale: float, *, scale_down: bool = False) -> Array:
    x = wide(input_)
    return np.asarray(x / scale if scale_down else x * scale).astype(input_.dtype)


@_quiet
def batch_scale(
    input_: Array, *, scale_0: float, scale_1: float, scale_2: float | None = None
) -> tuple[Array | None, ...]:
    scales = (scale_0, scale_1, scale_2)
    return tuple(None if s is None else _scaled(input_, s).astype(input_.dtype) for s in scales)


@_quiet
def scaled_sum(
    input_0: Array,
    input_1: Array,
    input_2: Array | None,
    *,
    scale_0: float,
    scale_1: float,
    scale_2: float | None = None,
) -> Array:
    total = _scaled(input_0, scale_0) + _scaled(input_1, scale_1)
    if input_2 is not None and scale_2 is not None:
        total = total + _scaled(input_2, scale_2)
    return np.asarray(total).astype(input_0.dtype)


@_quiet
def fake_quant(
    input_: Array, scale: float, zero_point: float, *, quant_min: int = 0, quant_max: int = 255
) -> tuple[Array, Array]:
    least, most = (rounded(bound, input_.dtype) for bound in (quant_min, quant_max))
    q = np.rint(wide(input_) / scale) + zero_point
    output = (np.clip(q, least, most) - zero_point) * scale
    mask = (least <= q) & (q <= most)
    return np.asarray(output).astype(input_.dtype), np.asarray(mask)


def fake_quant_grad(dy: Array, gradient_mask: Array) -> Array:
    return np.where(gradient_mask, dy, np.zeros_like(dy))


@_quiet
def is_finite(x: Array) -> Array:
    return np.asarray(np.isfinite(x))


@_quiet
def div_grad(dy: Array, a: Array, b: Array) -> tuple[Array, Array]:
    by_a = wide(dy) / wide(b)
    return _summed(by_a, a), _summed(-by_a * (wide(a) / wide(b)), b)
