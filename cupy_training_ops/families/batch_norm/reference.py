# SPDX-License-Identifier: MIT
"""Batch normalisation and its gradient in NumPy. Formulas: `operators.py`.

epsilon is added to variances. Running statistics become momentum times what they were plus
1 - momentum times the batch's; unbiased: with its variance m / (m - 1) times as large, m the
elements of a channel. scale and bias: (C,), factor and summand of each channel.

Elements of large arrays are computed in float32; small arrays, channels beyond float32's range or
precision, and all sums in float64. Some channels at a time, whose temporaries stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...dtypes import FLOAT32, FLOAT64, Dtype, HostArray
from ...rules.pieces import PIECE, column_sums, working_type
from ...rules.widening import cast, in_range, quiet, round_number

_LEAST = 1e-30  # a variance that float32's squares add up to with all digits


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
    """Return Y = scale (X - mean) / sqrt(var + epsilon) + bias, and four statistics.

    These are running_mean, running_var, saved_mean, saved_inv_std; None without training_mode.
    x: (N, C, ...), the other arrays: (C,). mean and var are X's, or without training_mode
    input_mean and input_var, the running ones before. epsilon: added to var. Running statistics
    become momentum times theirs plus 1 - momentum times mean and var; unbiased: var m / (m - 1), m
    the elements of a channel.
    """
    before = _wide(input_mean), _wide(input_var)
    y, mean, var, inv_std = _normalize(x, scale, bias, epsilon, None if training_mode else before)
    if not training_mode:
        return y, None, None, None, None
    running = _running(before, (mean, var), x.size, momentum, unbiased)
    statistics = (*running, mean, inv_std)
    return y, *(cast(statistic, input_mean.dtype) for statistic in statistics)


@quiet
def batch_norm_relu(
    x: HostArray,
    scale: HostArray,
    bias: HostArray,
    running_mean: HostArray,
    running_var: HostArray,
    residual: HostArray | None = None,
    *,
    epsilon: float,
    momentum: float,
    unbiased: bool,
) -> tuple[HostArray, ...]:
    """Update the running statistics in place; return Y, saved_mean and saved_inv_std.

    Y = max(0, scale (X - mean) inv_std + bias + residual); x, residual: (N, C, ...), others: (C,).
    epsilon: added to var. Running statistics become momentum times theirs plus 1 - momentum times
    the batch's mean and var; unbiased: var m / (m - 1), m the elements of a channel.
    """
    residuals = None if residual is None else _channels(residual)

    def rectify(values: HostArray, some: slice | HostArray) -> HostArray:
        """Return relu of values plus the residual of the channels `some`; NaN stays NaN."""
        if residuals is not None:
            values = values + residuals[:, some].astype(values.dtype)
        return np.where(values <= 0, values.dtype.type(0), values)

    y, mean, var, inv_std = _normalize(x, scale, bias, epsilon, None, rectify)
    before = _wide(running_mean), _wide(running_var)
    running = _running(before, (mean, var), x.size, momentum, unbiased)
    running_mean[...], running_var[...] = (cast(each, running_mean.dtype) for each in running)
    return y, cast(mean, running_mean.dtype), cast(inv_std, running_mean.dtype)


def _normalize(
    x: HostArray,
    scale: HostArray,
    bias: HostArray,
    epsilon: float,
    fixed: tuple[HostArray, HostArray] | None,
    finish: Callable[[HostArray, slice | HostArray], HostArray] = lambda values, _: values,
) -> tuple[HostArray, HostArray, HostArray, HostArray]:
    """Return Y, means, biased variances and inv_std of channels, in float64 but for Y.

    x: (N, C, ...). scale, bias: (C,). epsilon: added to variances. fixed: (means, variances) to use
    in place of X's. finish(values, channels) is applied to the values of some channels before they
    are rounded. `rest`: channels that are not accurate in float32 and are computed again in
    float64.
    """
    channels, y = _channels(x), np.empty(x.shape, x.dtype)
    result, eps = _channels(y), float(round_number(epsilon, x.dtype))
    n_channels = channels.shape[1]
    mean, var = map(np.array, fixed or (np.zeros(n_channels), np.zeros(n_channels)))
    for some in _pieces(channels):
        rest: HostArray = np.arange(some.start, some.stop)
        if working_type(x) == FLOAT32:
            numbers = channels[:, some].astype(FLOAT32, copy=False)
            if fixed is None:
                distance, mean[some], var[some] = _distances(numbers)
            else:
                distance = numbers - _along(mean[some].astype(FLOAT32))
            factor = _wide(scale)[some] / np.sqrt(var[some] + eps)
            distance *= _along(factor.astype(FLOAT32))
            distance += _along(bias[some].astype(FLOAT32))
            distance = finish(distance, some)
            result[:, some] = cast(distance, x.dtype) if x.dtype != FLOAT32 else distance
            finite = np.isfinite(mean[some]) & np.isfinite(var[some]) & (var[some] + eps >= _LEAST)
            rest = rest[~finite]
        if rest.size:
            wide = _wide(channels[:, rest])
            if fixed is None:
                mean[rest], var[rest] = _moments(wide, x.dtype)
            factor = _wide(scale)[rest] / np.sqrt(var[rest] + eps)
            exact = (wide - _along(mean[rest])) * _along(factor) + _along(_wide(bias)[rest])
            result[:, rest] = cast(finish(exact, rest), x.dtype)
    return y, mean, var, 1 / np.sqrt(var + eps)


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
    """Return X_grad, scale_grad and bias_grad, computed some channels at a time.

    dy, x: (N, C, ...), the other arrays: (C,). saved_...: what batch_norm_internal returned, which
    has epsilon in it already.
    `rest`: channels whose sums are not finite in float32 and are computed again in float64.
    """
    slopes, channels, gradient = _channels(dy), _channels(x), np.empty(x.shape, x.dtype)
    of_x = _channels(gradient)
    sums = np.zeros((2, channels.shape[1]))
    for some in _pieces(channels):
        rest: HostArray = np.arange(some.start, some.stop)
        arrays = (slopes, channels, scale, saved_mean, saved_inv_std)
        if working_type(x) == FLOAT32:
            of_some, sums[:, some] = _gradient(*arrays, some, FLOAT32)
            of_x[:, some] = of_some if x.dtype == FLOAT32 else cast(of_some, x.dtype)
            rest = rest[~np.isfinite(sums[:, some]).all(0)]
        if rest.size:
            of_some, sums[:, rest] = _gradient(*arrays, rest, FLOAT64)
            of_x[:, rest] = cast(of_some, x.dtype)
    return gradient, cast(sums[0], scale.dtype), cast(sums[1], scale.dtype)


@quiet
def batch_norm_relu_grad(
    dy: HostArray,
    x: HostArray,
    y: HostArray,
    scale: HostArray,
    saved_mean: HostArray,
    saved_inv_std: HostArray,
) -> tuple[HostArray, ...]:
    """Return X_grad, scale_grad, bias_grad and residual_grad = dY where Y > 0 or NaN, else 0.

    dy, x, y: (N, C, ...), the others (C,). saved_...: what batch_norm_relu returned.
    """
    slope = np.where(y <= 0, dy.dtype.type(0), dy)
    gradients = batch_normalization_grad(slope, x, scale, saved_mean, saved_inv_std, epsilon=0.0)
    return *gradients, slope


def _gradient(
    slopes: HostArray,
    channels: HostArray,
    scale: HostArray,
    mean: HostArray,
    inv_std: HostArray,
    some: slice | HostArray,
    kind: Dtype,
) -> tuple[HostArray, HostArray]:
    """Return X_grad of the channels `some`, and (scale_grad, bias_grad) of them in one array.

    slopes (dY) and channels (X) are (outer, channels, length); scale, mean and inv_std have a
    number for each channel. kind: the type of the products. Sums are in float64.
    """
    slope = slopes[:, some].astype(kind, copy=False)
    own_inv_std = _along(_wide(inv_std)[some].astype(kind))
    x_hat = channels[:, some].astype(kind, copy=False) - _along(_wide(mean)[some].astype(kind))
    x_hat *= own_inv_std
    products = slope * x_hat
    of_scale, of_bias = _sum(products), _sum(slope)
    m = slope.size / max(1, of_bias.size)
    x_hat *= _along((of_scale / m).astype(kind))
    centred = np.subtract(slope, x_hat, out=products)
    centred -= _along((of_bias / m).astype(kind))
    centred *= _along(_wide(scale)[some].astype(kind)) * own_inv_std
    return centred, np.stack([of_scale, of_bias])


def _wide(x: HostArray) -> HostArray:
    return x.astype(FLOAT64)


def _channels(x: HostArray) -> HostArray:
    """Return a view (outer, channels, length); an array of rank 1 is one channel."""
    return x.reshape((1, 1, x.size) if x.ndim == 1 else (*x.shape[:2], int(np.prod(x.shape[2:]))))


def _pieces(channels: HostArray) -> Iterator[slice]:
    """Yield slices of channels, about PIECE elements each."""
    n = channels.shape[1]
    step = max(1, PIECE * n // max(1, channels.size))
    return (slice(first, min(first + step, n)) for first in range(0, n, step))


def _along(per_channel: HostArray) -> HostArray:
    """Return numbers of channels as a column, for arrays (outer, channels, length)."""
    return per_channel[:, None]


def _sum(x: HostArray) -> HostArray:
    """Return the sum of each channel of (outer, channels, length), in float64."""
    return column_sums(np.asarray(x.sum(2)))


def _distances(x: HostArray) -> tuple[HostArray, HostArray, HostArray]:
    """Return (distances of elements from their channel's mean in float32, means, variances).

    A mean in float32 is off by its rounding. The mean of the distances from it is that error: it is
    added to the mean, and subtracted from the distances where they are precise enough to show it.
    """
    m = max(1, x.size // max(1, x.shape[1]))
    about = (_sum(x) / m).astype(FLOAT32)
    distance = x - _along(about)
    more = _sum(distance) / m
    var = _sum(np.square(distance)) / m - np.square(more)
    if (np.abs(more) > 2.0**-25 * np.sqrt(var)).any():  # relative to float32's precision
        distance -= _along(more.astype(FLOAT32))
        var = _sum(np.square(distance)) / m
    return distance, about + more, var


def _moments(x: HostArray, dtype: Dtype) -> tuple[HostArray, HostArray]:
    """Return means and biased variances of channels in float64, 0 without elements.

    Sums of squares beyond the range that `dtype` is computed in are infinite, as on the GPU.
    """
    m = max(1, x.size // max(1, x.shape[1]))
    mean = _sum(x) / m
    return mean, in_range(_sum((x - _along(mean)) ** 2), dtype) / m


def _running(
    before: tuple[HostArray, HostArray],
    now: tuple[HostArray, HostArray],
    size: int,
    momentum: float,
    unbiased: bool,
) -> tuple[HostArray, ...]:
    """Return running (mean, var) after a batch of `size` elements of all channels.

    They are momentum before + (1 - momentum) now. before: those before it. now: the batch's means
    and biased variances; unbiased: multiply these by m / (m - 1), m elements of a channel.
    """
    mean, var = now
    m = size // max(1, mean.size)
    if m == 0:
        return before
    corrected = var * m / (m - 1) if unbiased and m > 1 else var
    pairs = zip(before, (mean, corrected), strict=True)
    return tuple(momentum * old + (1 - momentum) * new for old, new in pairs)
