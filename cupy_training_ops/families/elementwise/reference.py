# SPDX-License-Identifier: MIT
"""Scaling, division, quantisation, finiteness in NumPy. Formulas: `operators.py`."""

from __future__ import annotations

import numpy as np

from ...dtypes import FLOAT64, HostArray
from ...rules.widening import cast, quiet, round_number, wide


def _scale(x: HostArray, scale: float) -> HostArray:
    """Return x scale, in float32, or float64 for float64."""
    return np.asarray(wide(x) * scale)


def _sum_like(x: HostArray, like: HostArray) -> HostArray:
    """Return x summed in float64 to the shape of `like`, which broadcasts to x's; like's dtype."""
    if x.size == like.size:  # a sum that begins with 0 would lose the sign of -0.0
        return x.reshape(like.shape).astype(like.dtype)
    lead = x.ndim - like.ndim
    ones = (d for d, extent in enumerate(like.shape, lead) if extent == 1 != x.shape[d])
    total = np.sum(x, axis=(*range(lead), *ones), dtype=FLOAT64)
    return cast(total.reshape(like.shape), like.dtype)


@quiet
def scale(input_: HostArray, scale: float, *, scale_down: bool) -> HostArray:
    x = wide(input_)
    return np.asarray(x / scale if scale_down else x * scale).astype(input_.dtype)


@quiet
def scale_in_place(input_: HostArray, factor: HostArray) -> HostArray:
    """Return input_ times the one element of `factor`."""
    return np.asarray(wide(input_) * wide(factor).reshape(())).astype(input_.dtype)


@quiet
def batch_scale(
    input_: HostArray, *, scale_0: float, scale_1: float, scale_2: float | None
) -> tuple[HostArray | None, ...]:
    """Return input_ scale_i for each i, None for a scale_2 that is None."""
    scales = (scale_0, scale_1, scale_2)
    return tuple(None if s is None else _scale(input_, s).astype(input_.dtype) for s in scales)


@quiet
def scaled_sum(
    input_0: HostArray,
    input_1: HostArray,
    input_2: HostArray | None,
    *,
    scale_0: float,
    scale_1: float,
    scale_2: float | None,
) -> HostArray:
    """Return input_0 scale_0 + input_1 scale_1, and + input_2 scale_2 if there is one."""
    total = _scale(input_0, scale_0) + _scale(input_1, scale_1)
    if input_2 is not None and scale_2 is not None:
        total = total + _scale(input_2, scale_2)
    return np.asarray(total).astype(input_0.dtype)


@quiet
def fake_quant(
    input_: HostArray, scale: float, zero_point: float, *, quant_min: int, quant_max: int
) -> tuple[HostArray, HostArray]:
    """Return (clip(q, quant_min, quant_max) - zero_point) scale, and the mask q is in range.

    q = round(X / scale) + zero_point.
    """
    least, most = (round_number(bound, input_.dtype) for bound in (quant_min, quant_max))
    q = np.rint(wide(input_) / scale) + zero_point
    output = (np.clip(q, least, most) - zero_point) * scale
    mask = (least <= q) & (q <= most)
    return np.asarray(output).astype(input_.dtype), np.asarray(mask)


def fake_quant_grad(dy: HostArray, gradient_mask: HostArray) -> HostArray:
    return np.where(gradient_mask, dy, np.zeros_like(dy))


@quiet
def is_finite(x: HostArray) -> HostArray:
    return np.asarray(np.isfinite(x))


@quiet
def div_grad(dy: HostArray, a: HostArray, b: HostArray) -> tuple[HostArray, HostArray]:
    """Return dA and dB of A / B, summed over the dimensions that A or B is repeated along."""
    by_a = wide(dy) / wide(b)
    return _sum_like(by_a, a), _sum_like(-by_a * (wide(a) / wide(b)), b)
