# SPDX-License-Identifier: MIT
"""Layer normalisations and their gradients in NumPy. Formulas: `operators.py`.

Rows of large arrays are computed in float32, all others and those that float32 does not hold in
float64, and so are sums over rows. What NumPy makes of some rows at a time stays in the cache.

A row is the dimensions from `axis` on, which scale and bias have the shape of; statistics (mean,
inv_std = 1 / sqrt(variance + epsilon)) have a number for each row. y_grad: the gradient of Y.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ...dtypes import FLOAT32, FLOAT64, Dtype, HostArray
from ...rules.pieces import PIECE, column_sums, line_sums, place_for, put, working_type
from ...rules.widening import cast, computed_in, in_range, quiet, round_number

_LEAST = 1e-30  # a variance that float32's squares add up to with all digits


def layer_normalization(
    x: HostArray,
    scale: HostArray,
    b: HostArray | None = None,
    *,
    axis: int,
    epsilon: float,
    stash_type: int,  # noqa: ARG001 - it has one value
) -> tuple[HostArray, HostArray, HostArray]:
    """Return Y = scale (X - mean) inv_std + B over dimensions from `axis` on; mean; inv_std.

    scale, b: of a row's shape; b None: no bias. epsilon: added to variances.
    """
    return _normalize(_Rows.of(x, axis), x, scale, b, True, epsilon)


def simplified_layer_normalization(
    x: HostArray, scale: HostArray, *, axis: int, epsilon: float
) -> tuple[HostArray, HostArray]:
    """Return Y = scale X inv_std over dimensions from `axis` on; inv_std.

    scale: of a row's shape. inv_std = 1 / sqrt(mean of X^2 over the row + epsilon).
    """
    y, _, inv_std = _normalize(_Rows.of(x, axis), x, scale, None, False, epsilon)
    return y, inv_std


@quiet
def layer_normalization_grad(
    y_grad: HostArray,
    x: HostArray,
    scale: HostArray,
    mean: HostArray,
    inv_std_dev: HostArray,
    *,
    axis: int,
) -> tuple[HostArray, HostArray, HostArray]:
    """Return X_grad, scale_grad and bias_grad, with x^ = (X - mean) inv_std.

    y_grad: gradient of Y. scale: of a row's shape. mean, inv_std_dev: what layer_normalization
    returned, of rows.
    """
    rows = _Rows.of(x, axis)
    gradient = _Gradient(rows, y_grad, scale, inv_std_dev, x.dtype)
    matrix, means = rows.matrix(x), mean.reshape(-1, 1)

    def x_hat(which: Which, kind: Dtype) -> HostArray:
        """Return x^ of the rows `which` in dtype `kind`."""
        distance = _as(matrix[which], kind) - _as(means[which], kind)
        distance *= _as(gradient.inv_std[which], kind)
        return distance

    return gradient.of(x_hat, is_centred=True)


@quiet
def simplified_layer_normalization_grad(
    y_grad: HostArray, x: HostArray, scale: HostArray, inv_std_var: HostArray, *, axis: int
) -> tuple[HostArray, HostArray]:
    """Return X_grad and scale_grad of RMS normalization, with x^ = X inv_std.

    y_grad: gradient of Y. scale: of a row's shape. inv_std_var: what simplified_layer_normalization
    returned, of rows.
    """
    rows = _Rows.of(x, axis)
    gradient = _Gradient(rows, y_grad, scale, inv_std_var, x.dtype)
    matrix = rows.matrix(x)

    def x_hat(which: Which, kind: Dtype) -> HostArray:
        return _as(matrix[which], kind) * _as(gradient.inv_std[which], kind)

    return gradient.of(x_hat, is_centred=False)[:2]


@quiet
def invertible_layer_normalization_grad(
    y_grad: HostArray,
    y: HostArray,
    scale: HostArray,
    bias: HostArray,
    inv_std_var: HostArray,
    *,
    axis: int,
    output_type: Dtype | None,
) -> tuple[HostArray, HostArray, HostArray]:
    """Return X_grad, scale_grad, bias_grad, with x^ = (Y - bias) / scale, 0 where scale is 0.

    y_grad: gradient of Y. inv_std_var: inv_std of rows. output_type: of X_grad, None: Y's.
    """
    rows = _Rows.of(y, axis)
    gradient = _Gradient(rows, y_grad, scale, inv_std_var, output_type or y.dtype)
    matrix, shift, known = rows.matrix(y), bias.reshape(-1), gradient.scale != 0
    divisor = np.where(known, gradient.scale, 1)

    def x_hat(which: Which, kind: Dtype) -> HostArray:
        """Return x^ of the rows `which` in dtype `kind`."""
        distance = _as(matrix[which], kind) - _as(shift, kind)
        distance /= divisor  # small ones cost float32 digits
        np.copyto(distance, 0, where=~known)
        return distance

    return gradient.of(x_hat, is_centred=True, in_float32=False)


Which = slice | HostArray  # rows, or their numbers
# f(rows, dtype): x^, the normalised X, of these rows, as a new array (rows, length) of this dtype
Normalised = Callable[[Which, Dtype], HostArray]


class _Rows(NamedTuple):
    """An array as n_rows rows of `length` elements."""

    n_rows: int
    length: int
    statistics: tuple[int, ...]  # shape of an array with a number for each row

    @classmethod
    def of(cls, x: HostArray, axis: int) -> _Rows:
        """Return the rows of an array: everything from the axis on is one."""
        axis %= x.ndim
        before, row = x.shape[:axis], x.shape[axis:]
        return cls(math.prod(before), math.prod(row), (*before, *(1 for _ in row)))

    def matrix(self, x: HostArray) -> HostArray:
        """Return x as a matrix of its rows."""
        return x.reshape(self.n_rows, self.length)

    def pieces(self) -> Iterator[slice]:
        """Return slices of rows, about PIECE elements each."""
        step = max(1, PIECE // max(1, self.length))
        return (slice(start, start + step) for start in range(0, self.n_rows, step))


@quiet
def _normalize(
    rows: _Rows,
    x: HostArray,
    scale: HostArray,
    bias: HostArray | None,
    is_centred: bool,
    epsilon: float,
) -> tuple[HostArray, HostArray, HostArray]:
    """Return Y, of x's shape, and mean and inv_std, of shape rows.statistics.

    scale, bias: of rows.length elements; None: no bias. is_centred: False does without means, which
    are then 0. epsilon: added to variances.
    """
    y = np.empty((rows.n_rows, rows.length), scale.dtype)
    mean, inv_std = np.zeros((rows.n_rows, 1)), np.empty((rows.n_rows, 1))
    wide_scale = _wide(scale).reshape(-1)
    shift = np.zeros(1) if bias is None else _wide(bias).reshape(-1)
    eps = float(round_number(epsilon, x.dtype))
    matrix = rows.matrix(x)
    for piece in rows.pieces():
        # rest: rows for float64, all of them or those that float32 does not hold.
        rest: HostArray = np.arange(piece.start, min(piece.stop, rows.n_rows))
        if working_type(x) == FLOAT32:
            narrow = matrix[piece].astype(FLOAT32, copy=False)
            distance, variance = _distances(narrow, is_centred, mean[piece])
            inv_std[piece] = 1 / np.sqrt(variance + eps)
            of_y = y[piece]
            result = place_for(of_y, FLOAT32)
            np.multiply(distance, inv_std[piece].astype(FLOAT32), out=result)
            result *= wide_scale.astype(FLOAT32)
            if bias is not None:
                result += shift.astype(FLOAT32)
            put(of_y, result)
            rest = rest[~(np.isfinite(variance) & (variance + eps >= _LEAST)).ravel()]
        if not rest.size:
            continue
        distance = _wide(matrix[rest])
        if is_centred:
            mean[rest] = distance.sum(1, keepdims=True) / max(1, rows.length)
            distance = distance - mean[rest]
        squares = in_range(np.einsum("ij,ij->i", distance, distance), x.dtype)
        inv_std[rest, 0] = 1 / np.sqrt(squares / max(1, rows.length) + eps)
        y[rest] = cast(distance * inv_std[rest] * wide_scale + shift, y.dtype)
    u = computed_in(x.dtype)
    statistics = [statistic.reshape(rows.statistics).astype(u) for statistic in (mean, inv_std)]
    return y.reshape(x.shape), statistics[0], statistics[1]


def _distances(x: HostArray, is_centred: bool, mean: HostArray) -> tuple[HostArray, HostArray]:
    """Return x - mean of its row, in float32, and variances (rows, 1); write means into `mean`.

    Without is_centred the mean counts as 0, and nothing is written.

    A mean in float32 is off by its rounding, so the mean of the distances from it is added, and
    subtracted where they show it.
    """
    n = max(1, x.shape[1])
    if not is_centred:
        return x, _wide(line_sums(np.square(x))) / n
    about = line_sums(x) / FLOAT32.type(n)
    distance = x - about
    more = _wide(line_sums(distance)) / n
    variance = _wide(line_sums(np.square(distance))) / n - np.square(more)
    mean[...] = about + more
    if (np.abs(more) > 2.0**-25 * np.sqrt(variance)).any():
        distance -= more.astype(FLOAT32)
        variance = _wide(line_sums(np.square(distance))) / n
    return distance, variance


class _Gradient:
    """Makes X_grad (of type t) and the sums over rows, some rows at a time."""

    def __init__(
        self, rows: _Rows, y_grad: HostArray, scale: HostArray, inv_std: HostArray, t: Dtype
    ) -> None:
        """Take the arrays that all three gradients have; t: dtype of X_grad.

        y_grad: gradient of Y. scale: of a row's elements. inv_std: of rows.
        """
        self.rows = rows
        self.y_grad = rows.matrix(y_grad)
        self.scale = _wide(scale).reshape(-1)
        self.inv_std = _wide(inv_std).reshape(-1, 1)
        self._x_grad = np.empty((rows.n_rows, rows.length), t)
        self._parameter, self._shape = scale, y_grad.shape

    @quiet
    def of(
        self, x_hat: Normalised, is_centred: bool, in_float32: bool = True
    ) -> tuple[HostArray, HostArray, HostArray]:
        """Return the gradients of X, scale and bias.

        x_hat: a function that gives rows of X, normalised, in a type. is_centred: the normalisation
        subtracted means. in_float32: False computes all rows in float64; else only those that are
        not finite in float32.
        """
        sums = np.zeros((2, self.rows.length))
        in_float32 &= working_type(self._x_grad) == FLOAT32
        for piece in self.rows.pieces():
            if in_float32:
                part, finite = self._of_rows(piece, x_hat(piece, FLOAT32), is_centred)
            if not in_float32 or not np.isfinite(part).all():
                part, finite = self._of_rows(piece, x_hat(piece, FLOAT64), is_centred)
            elif not finite.all():
                lost = piece.start + np.flatnonzero(~finite)
                self._of_rows(lost, x_hat(lost, FLOAT64), is_centred)
            sums += part
        scale = self._parameter
        of_scale, of_bias = (cast(each, scale.dtype).reshape(scale.shape) for each in sums)
        return self._x_grad.reshape(self._shape), of_scale, of_bias

    def _of_rows(
        self, which: Which, x_hat: HostArray, is_centred: bool
    ) -> tuple[HostArray, HostArray]:
        """Write X_grad of some rows; return sums over these rows, and which of them are finite.

        which: the rows. x_hat: x^ of them, which is overwritten. is_centred: the normalisation
        subtracted means. Sums: (2, length), for scale and bias.
        """
        kind, n = x_hat.dtype, self.rows.length
        dy, inv_std = _as(self.y_grad[which], kind), _as(self.inv_std[which], kind)
        h = dy * _as(self.scale, kind)
        products = np.multiply(h, x_hat)
        slope = line_sums(products) / kind.type(n)
        if is_centred:
            h -= line_sums(h) / kind.type(n)
        sums = np.stack([column_sums(np.multiply(dy, x_hat, out=products)), column_sums(dy)])
        x_hat *= slope
        h -= x_hat
        h *= inv_std
        self._x_grad[which] = h if h.dtype == self._x_grad.dtype else cast(h, self._x_grad.dtype)
        finite: HostArray = np.isfinite(slope * inv_std).ravel() & np.isfinite(h[:, :1]).ravel()
        return sums, finite


def _wide(x: HostArray) -> HostArray:
    """Return x in float64, itself if it is."""
    return x.astype(FLOAT64, copy=False)


def _as(x: HostArray, kind: Dtype) -> HostArray:
    """Return x in dtype `kind`, itself if it is of that."""
    return x.astype(kind, copy=False)
