# SPDX-License-Identifier: MIT
"""Softmax, its logarithm and their gradients in NumPy. Formulas: `operators.py`."""

from __future__ import annotations

import math

import numpy as np

from ...dtypes import HostArray
from ...rules.pieces import (
    below_zero,
    line_sums,
    log_of_lines,
    pieces,
    place_for,
    put,
    working_type,
)
from ...rules.widening import quiet


@quiet
def softmax(x: HostArray, *, axis: int) -> HostArray:
    """Return e^(x - max) / sum of e^(x - max), along an axis."""
    y, kind = np.empty(x.shape, x.dtype), working_type(x)
    for of_x, of_y in pieces(axis, x, y):
        shares = below_zero(of_x, of_y, kind)
        np.exp(shares, out=shares)
        shares *= 1 / line_sums(shares)
        put(of_y, shares)
    return y


@quiet
def log_softmax(x: HostArray, *, axis: int) -> HostArray:
    """Return (x - max) - ln(sum of e^(x - max)), along an axis."""
    y, kind = np.empty(x.shape, x.dtype), working_type(x)
    for of_x, of_y in pieces(axis, x, y):
        put(of_y, log_of_lines(of_x, of_y, kind))
    return y


@quiet
def softmax_grad_13(dy: HostArray, y: HostArray, *, axis: int) -> HostArray:
    """Return dX = Y (dY - sum of Y dY), along an axis."""
    dx, kind = np.empty(dy.shape, dy.dtype), working_type(dy)
    for of_dy, of_y, of_dx in pieces(axis, dy, y, dx):
        wide_dy, wide_y = (each.astype(kind, copy=False) for each in (of_dy, of_y))
        gradient = place_for(of_dx, kind)
        np.multiply(wide_y, wide_dy, out=gradient)
        np.subtract(wide_dy, line_sums(gradient), out=gradient)
        gradient *= wide_y
        put(of_dx, gradient)
    return dx


@quiet
def log_softmax_grad_13(dy: HostArray, x: HostArray, *, axis: int) -> HostArray:
    """Return dX = dY - e^X sum of dY, X the output of LogSoftmax, along an axis."""
    dx, kind = np.empty(dy.shape, dy.dtype), working_type(dy)
    for of_dy, of_x, of_dx in pieces(axis, dy, x, dx):
        wide_dy = of_dy.astype(kind, copy=False)
        gradient = place_for(of_dx, kind)
        np.exp(of_x.astype(kind, copy=False), out=gradient)
        gradient *= line_sums(wide_dy)
        put(of_dx, np.subtract(wide_dy, gradient, out=gradient))
    return dx


def softmax_grad(dy: HostArray, y: HostArray, *, axis: int) -> HostArray:
    """Return softmax_grad_13 over rows: everything from the axis on is one."""
    return softmax_grad_13(_rows(dy, axis), _rows(y, axis), axis=-1).reshape(dy.shape)


def log_softmax_grad(dy: HostArray, x: HostArray, *, axis: int) -> HostArray:
    """Return log_softmax_grad_13 over rows: everything from the axis on is one."""
    return log_softmax_grad_13(_rows(dy, axis), _rows(x, axis), axis=-1).reshape(dy.shape)


def _rows(x: HostArray, axis: int) -> HostArray:
    """Return a matrix with all dimensions before the axis as rows, the others as columns."""
    before = x.shape[: axis % x.ndim]
    return x.reshape(math.prod(before), math.prod(x.shape[len(before) :]))
