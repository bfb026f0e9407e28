# SPDX-License-Identifier: MIT
"""Batch normalisation and its gradient in NumPy. Formulas: `operators.py`.

Everything is computed in float64 and rounded once.
"""

from __future__ import annotations

import numpy as np

from ...dtypes import FLOAT64, Dtype, HostArray
from ...rules.widening import cast, in_range, quiet, round_number


@quiet
def batch_norm_internal(
    x: HostArray,
    scale: HostArray,
    bias: HostArray,
    input_mean: HostArray,
    input_var: HostArray,
    *,
    epsilon: float,
    momentum: float,
    training_mode: bool,
    unbiased: bool,
) -> tuple[HostArray | None, ...]:
    wide, before = _channels(x), (_wide(input_mean), _wide(input_var))
    mean, var = _moments(wide, x.dtype) if training_mode else before
    inv_std = 1 / np.sqrt(var + float(round_number(epsilon, x.dtype)))
    y = (wide - _along(mean)) * _along(_wide(scale) * inv_std) + _along(_wide(bias))
    result = cast(y.reshape(x.shape), x.dtype)
    if not training_mode:
        return result, None, None, None, None
    m = wide.size // max(1, mean.size)
    corrected = var * m / (m - 1) if unbiased and m > 1 else var
    running = before if m == 0 else _running(before, (mean, corrected), momentum)
    statistics = (*running, mean, inv_std)
    return result, *(cast(statistic, input_mean.dtype) for statistic in statistics)


@quiet
def batch_normalization_grad(
    dy: HostArray,
    x: HostArray,
    scale: HostArray,
    saved_mean: HostArray,
    saved_inv_std: HostArray,
    *,
    epsilon: float,  # noqa: ARG001
) -> tuple[HostArray, ...]:
    slope, inv_std = _channels(dy), _along(_wide(saved_inv_std))
    xhat = (_channels(x) - _along(_wide(saved_mean))) * inv_std
    of_bias, of_scale = _sum(slope), _sum(slope * xhat)
    m = slope.size / max(1, of_bias.size)
    centred = slope - _along(of_bias) / m - xhat * (_along(of_scale) / m)
    gradient = (_along(_wide(scale)) * inv_std * centred).reshape(x.shape)
    return cast(gradient, x.dtype), cast(of_scale, scale.dtype), cast(of_bias, scale.dtype)


def _wide(x: HostArray) -> HostArray:
    return x.astype(FLOAT64)


def _channels(x: HostArray) -> HostArray:
    """In float64 and three dimensions, channels along the second; rank 1 is one channel."""
    shape = (1, 1, x.size) if x.ndim == 1 else (*x.shape[:2], int(np.prod(x.shape[2:])))
    return _wide(x).reshape(shape)


def _along(per_channel: HostArray) -> HostArray:
    return per_channel[:, None]


def _sum(x: HostArray) -> HostArray:
    return np.asarray(x.sum((0, 2)))


def _moments(x: HostArray, dtype: Dtype) -> tuple[HostArray, HostArray]:
    """Means and biased variances, 0 where there is nothing."""
    m = max(1, x.size // max(1, x.shape[1]))
    mean = _sum(x) / m
    return mean, in_range(_sum((x - _along(mean)) ** 2), dtype) / m


def _running(
    before: tuple[HostArray, HostArray], now: tuple[HostArray, HostArray], momentum: float
) -> tuple[HostArray, ...]:
    pairs = zip(before, now, strict=True)
    return tuple(momentum * old + (1 - momentum) * new for old, new in pairs)
