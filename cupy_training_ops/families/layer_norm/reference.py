# SPDX-License-Identifier: MIT
"""Layer normalisations and their gradients in NumPy. Formulas: `operators.py`.

Everything is computed in float64 and rounded once, some rows at a time: what NumPy makes of them
stays in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...dtypes import FLOAT64, Dtype, HostArray
from ...rules.widening import cast, computed_in, in_range, quiet, round_number

_PIECE = 32_768  # elements


def layer_normalization(
    x: HostArray,
    scale: HostArray,
    b: HostArray | None = None,
    *,
    axis: int,
    epsilon: float,
    stash_type: int,  # noqa: ARG001 - it has one value
) -> tuple[HostArray, HostArray, HostArray]:
    return _normalize(_Rows.of(x, axis), x, scale, b, True, epsilon)


def simplified_layer_normalization(
    x: HostArray, scale: HostArray, *, axis: int, epsilon: float
) -> tuple[HostArray, HostArray]:
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
    rows = _Rows.of(x, axis)
    gradient = _Gradient(rows, y_grad, scale, inv_std_dev, x.dtype)
    wide_mean = _wide(mean).reshape(-1, 1)
    for piece in rows.pieces():
        distance = _wide(rows.matrix(x)[piece]) - wide_mean[piece]
        gradient.add(piece, distance * gradient.inv_std[piece], is_centred=True)
    return gradient.results()


@quiet
def simplified_layer_normalization_grad(
    y_grad: HostArray, x: HostArray, scale: HostArray, inv_std_var: HostArray, *, axis: int
) -> tuple[HostArray, HostArray]:
    rows = _Rows.of(x, axis)
    gradient = _Gradient(rows, y_grad, scale, inv_std_var, x.dtype)
    for piece in rows.pieces():
        x_hat = _wide(rows.matrix(x)[piece]) * gradient.inv_std[piece]
        gradient.add(piece, x_hat, is_centred=False)
    return gradient.results()[:2]


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
    rows = _Rows.of(y, axis)
    gradient = _Gradient(rows, y_grad, scale, inv_std_var, output_type or y.dtype)
    shift, known = _wide(bias).reshape(-1), gradient.scale != 0
    divisor = np.where(known, gradient.scale, 1)
    for piece in rows.pieces():
        x_hat = np.where(known, (_wide(rows.matrix(y)[piece]) - shift) / divisor, 0)
        gradient.add(piece, x_hat, is_centred=True)
    return gradient.results()


class _Rows(NamedTuple):
    """How an array comes apart into rows."""

    n_rows: int
    length: int
    statistics: tuple[int, ...]  # their shape

    @classmethod
    def of(cls, x: HostArray, axis: int) -> _Rows:
        """Return the rows of an array: everything from the axis on is one."""
        axis %= x.ndim
        before, row = x.shape[:axis], x.shape[axis:]
        return cls(math.prod(before), math.prod(row), (*before, *(1 for _ in row)))

    def matrix(self, x: HostArray) -> HostArray:
        """The rows."""
        return x.reshape(self.n_rows, self.length)

    def pieces(self) -> Iterator[slice]:
        """Some rows after the other."""
        step = max(1, _PIECE // max(1, self.length))
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
    """Y, mean and inv_std."""
    y = np.empty((rows.n_rows, rows.length), scale.dtype)
    mean, inv_std = np.zeros((rows.n_rows, 1)), np.empty((rows.n_rows, 1))
    wide_scale, shift = _wide(scale).reshape(-1), 0 if bias is None else _wide(bias).reshape(-1)
    n = max(1, rows.length)
    for piece in rows.pieces():
        distance = _wide(rows.matrix(x)[piece])
        if is_centred:
            mean[piece] = distance.sum(1, keepdims=True) / n
            distance = distance - mean[piece]
        variance = in_range(np.einsum("ij,ij->i", distance, distance), x.dtype) / n
        inv_std[piece, 0] = 1 / np.sqrt(variance + float(round_number(epsilon, x.dtype)))
        y[piece] = cast(distance * inv_std[piece] * wide_scale + shift, y.dtype)
    u = computed_in(x.dtype)
    statistics = [statistic.reshape(rows.statistics).astype(u) for statistic in (mean, inv_std)]
    return y.reshape(x.shape), statistics[0], statistics[1]


class _Gradient:
    """X_grad and the sums over rows, some rows at a time."""

    def __init__(
        self, rows: _Rows, y_grad: HostArray, scale: HostArray, inv_std: HostArray, t: Dtype
    ) -> None:
        self.rows = rows
        self.y_grad = rows.matrix(y_grad)
        self.scale = _wide(scale).reshape(-1)
        self.inv_std = _wide(inv_std).reshape(-1, 1)
        self._x_grad = np.empty((rows.n_rows, rows.length), t)
        self._sums = np.zeros((2, rows.length))
        self._parameter, self._shape = scale, y_grad.shape

    @quiet
    def add(self, piece: slice, x_hat: HostArray, is_centred: bool) -> None:
        """Some rows, of which x^ is known."""
        dy, inv_std, n = _wide(self.y_grad[piece]), self.inv_std[piece], self.rows.length
        h = dy * self.scale
        slope = np.einsum("ij,ij->i", h, x_hat)[:, None] / n
        if is_centred:
            h -= h.sum(1, keepdims=True) / n
        h -= x_hat * slope
        self._x_grad[piece] = cast(inv_std * h, self._x_grad.dtype)
        self._sums[0] += np.einsum("ij,ij->j", dy, x_hat)
        self._sums[1] += dy.sum(0)

    @quiet
    def results(self) -> tuple[HostArray, HostArray, HostArray]:
        """The gradients of X, scale and bias."""
        scale = self._parameter
        sums = [cast(each, scale.dtype).reshape(scale.shape) for each in self._sums]
        return self._x_grad.reshape(self._shape), sums[0], sums[1]


def _wide(x: HostArray) -> HostArray:
    return x.astype(FLOAT64, copy=False)
