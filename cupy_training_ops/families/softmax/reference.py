# SPDX-License-Identifier: MIT
"""Softmax, its logarithm and their gradients in NumPy. Formulas: `operators.py`."""

from __future__ import annotations

import math

import numpy as np

from ...dtypes import FLOAT64, HostArray
from ...rules.widening import cast, quiet


@quiet
def softmax(x: HostArray, *, axis: int) -> HostArray:
    exponentials = np.exp(_below_zero(x, axis))
    return cast(exponentials / exponentials.sum(axis, keepdims=True), x.dtype)


@quiet
def log_softmax(x: HostArray, *, axis: int) -> HostArray:
    shifted = _below_zero(x, axis)
    return cast(shifted - np.log(np.exp(shifted).sum(axis, keepdims=True)), x.dtype)


@quiet
def softmax_grad_13(dy: HostArray, y: HostArray, *, axis: int) -> HostArray:
    wide_dy, wide_y = dy.astype(FLOAT64), y.astype(FLOAT64)
    return cast(wide_y * (wide_dy - (wide_y * wide_dy).sum(axis, keepdims=True)), dy.dtype)


@quiet
def log_softmax_grad_13(dy: HostArray, x: HostArray, *, axis: int) -> HostArray:
    wide_dy = dy.astype(FLOAT64)
    summed = wide_dy.sum(axis, keepdims=True)
    return cast(wide_dy - np.exp(x.astype(FLOAT64)) * summed, dy.dtype)


def softmax_grad(dy: HostArray, y: HostArray, *, axis: int) -> HostArray:
    return softmax_grad_13(_rows(dy, axis), _rows(y, axis), axis=-1).reshape(dy.shape)


def log_softmax_grad(dy: HostArray, x: HostArray, *, axis: int) -> HostArray:
    return log_softmax_grad_13(_rows(dy, axis), _rows(x, axis), axis=-1).reshape(dy.shape)


def _below_zero(x: HostArray, axis: int) -> HostArray:
    """x minus its maximum along the axis, in float64."""
    wide = x.astype(FLOAT64)
    return np.asarray(wide - wide.max(axis, keepdims=True, initial=-np.inf))


def _rows(x: HostArray, axis: int) -> HostArray:
    """A matrix whose rows are everything from the axis on."""
    before = x.shape[: axis % x.ndim]
    return x.reshape(math.prod(before), math.prod(x.shape[len(before) :]))
