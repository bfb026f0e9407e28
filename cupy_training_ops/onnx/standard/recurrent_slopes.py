# SPDX-License-Identifier: MIT
"""Slopes of the activations of recurrent layers: dy/dx by arrays x and y = f(x).

SLOPES: by the activation's function in `recurrent`.
"""

from __future__ import annotations

from collections.abc import Mapping

from .elementwise import scalar, sigmoid
from .recurrent import ACTIVATIONS
from .table import Array, Function, Module


def _ones_where(condition: Array, x: Array) -> Array:
    return condition.astype(x.dtype)


def _affine(xp: Module, x: Array, y: Array, *, alpha: float, beta: float) -> Array:
    return xp.full_like(x, alpha)


def _elu(xp: Module, x: Array, y: Array, *, alpha: float) -> Array:
    return xp.where(x > 0, scalar(x, 1), y + scalar(x, alpha))


def _hard_sigmoid(xp: Module, x: Array, y: Array, *, alpha: float, beta: float) -> Array:
    return scalar(x, alpha) * _ones_where((y > 0) & (y < 1), x)


def _leaky_relu(xp: Module, x: Array, y: Array, *, alpha: float) -> Array:
    return xp.where(x > 0, scalar(x, 1), scalar(x, alpha))


def _relu(xp: Module, x: Array, y: Array) -> Array:
    return _ones_where(x > 0, x)


def _scaled_tanh(xp: Module, x: Array, y: Array, *, alpha: float, beta: float) -> Array:
    z = xp.tanh(x * scalar(x, beta))
    return scalar(x, alpha * beta) * (scalar(x, 1) - z * z)


def sigmoid_slope(xp: Module, x: Array, y: Array) -> Array:
    return y * (scalar(y, 1) - y)


def _softplus(xp: Module, x: Array, y: Array) -> Array:
    return sigmoid(xp, x)


def _softsign(xp: Module, x: Array, y: Array) -> Array:
    z = scalar(x, 1) + xp.abs(x)
    return scalar(x, 1) / (z * z)


def tanh_slope(xp: Module, x: Array, y: Array) -> Array:
    return scalar(y, 1) - y * y


def _thresholded_relu(xp: Module, x: Array, y: Array, *, alpha: float) -> Array:
    return _ones_where(x >= scalar(x, alpha), x)


_BY_NAME: Mapping[str, Function] = {
    "Affine": _affine,
    "Elu": _elu,
    "HardSigmoid": _hard_sigmoid,
    "LeakyRelu": _leaky_relu,
    "Relu": _relu,
    "ScaledTanh": _scaled_tanh,
    "Sigmoid": sigmoid_slope,
    "Softplus": _softplus,
    "Softsign": _softsign,
    "Tanh": tanh_slope,
    "ThresholdedRelu": _thresholded_relu,
}
SLOPES = {ACTIVATIONS[name][0]: slope for name, slope in _BY_NAME.items()}
