# SPDX-License-Identifier: MIT
"""Activations and their gradients in NumPy. Formulas: the classes in `ops/activation.py`.

Slopes and values of the Gelu family are worked out in float64, so that they are accurate to the
last digit of what the kernels compute in.
"""

from __future__ import annotations

import math

import numpy as np

from ..dtypes import FLOAT64, Dtype, HostArray
from ..numerics import cast, rounded, wide

# Overflow to infinity and underflow to zero are the limits that the formulas have.
_quiet = np.errstate(all="ignore")
_erfc = np.frompyfunc(math.erfc, 1, 1)
_FAST = 2 * math.sqrt(2 / math.pi)


def _normal_tail(x: HostArray) -> HostArray:
    """Phi(x) by the C library's erfc."""
    return np.asarray(_erfc(-x / math.sqrt(2)), FLOAT64) / 2


def _sigmoid(v: HostArray) -> HostArray:
    """1 / (1 + exp(-v)) with an exponential that does not overflow."""
    e = np.exp(-np.abs(v))
    return np.asarray(np.where(v > 0, 1, e) / (1 + e))


def _fast(z: HostArray) -> HostArray:
    return _FAST * (z + 0.044715 * z**3)


def _sum(x: HostArray, bias: HostArray | None = None) -> HostArray:
    """x + bias in float64."""
    z = x.astype(FLOAT64)
    return z if bias is None else np.asarray(z + bias.astype(FLOAT64))


def _quick(x: HostArray, alpha: float) -> HostArray:
    return np.asarray(float(rounded(alpha, x.dtype)) * _sum(x))


def _vanishing(x: HostArray, factor: HostArray) -> HostArray:
    """x times a factor that goes to 0 faster than x to infinity."""
    return np.where(factor == 0, factor, x * factor)


def _gelu(z: HostArray, dtype: Dtype) -> HostArray:
    return cast(_vanishing(z, _normal_tail(z)), dtype)


def _gelu_slope(z: HostArray) -> HostArray:
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return _normal_tail(z) + _vanishing(z, density)


def _gate_slope(v: HostArray, w: HostArray) -> HostArray:
    """d/dx of x s(v): s + w s (1 - s), s = 1 / (1 + exp(-v)), w = x dv/dx."""
    return _sigmoid(v) + _vanishing(w, _sigmoid(v) * _sigmoid(-v))


def _fast_slope(z: HostArray) -> HostArray:
    return _gate_slope(_fast(z), _FAST * (z + 3 * 0.044715 * z**3))


def _product(dy: HostArray, slope: HostArray) -> HostArray:
    wide_dy = wide(dy)
    return np.asarray(wide_dy * slope.astype(wide_dy.dtype)).astype(dy.dtype)


@_quiet
def relu_grad(dy: HostArray, x: HostArray) -> HostArray:
    return np.where(x > 0, dy, np.zeros_like(dy))


@_quiet
def leaky_relu_grad(dy: HostArray, y: HostArray, *, alpha: float = 0.01) -> HostArray:
    return np.where(y > 0, dy, (wide(dy) * alpha).astype(dy.dtype))


@_quiet
def sigmoid_grad(dy: HostArray, y: HostArray) -> HostArray:
    return np.asarray(wide(dy) * wide(y) * (1 - wide(y))).astype(dy.dtype)


@_quiet
def tanh_grad(dy: HostArray, y: HostArray) -> HostArray:
    return _product(dy, 1 - wide(y) * wide(y))


@_quiet
def gelu_grad(dy: HostArray, x: HostArray) -> HostArray:
    return _product(dy, _gelu_slope(_sum(x)))


@_quiet
def fast_gelu_grad(dy: HostArray, x: HostArray) -> HostArray:
    return _product(dy, _fast_slope(_sum(x)))


@_quiet
def quick_gelu_grad(dy: HostArray, x: HostArray, *, alpha: float = 1.702) -> HostArray:
    v = _quick(x, alpha)
    return _product(dy, _gate_slope(v, v))


@_quiet
def bias_gelu_grad_dx(dy: HostArray, x: HostArray, b: HostArray) -> HostArray:
    return _product(dy, _gelu_slope(_sum(x, b)))


@_quiet
def bias_fast_gelu_grad_dx(dy: HostArray, x: HostArray, b: HostArray) -> HostArray:
    return _product(dy, _fast_slope(_sum(x, b)))


@_quiet
def gelu(x: HostArray) -> HostArray:
    return _gelu(_sum(x), x.dtype)


@_quiet
def bias_gelu(a: HostArray, b: HostArray) -> HostArray:
    return _gelu(_sum(a, b), a.dtype)


@_quiet
def fast_gelu(x: HostArray, bias: HostArray | None) -> HostArray:
    z = _sum(x, bias)
    return cast(_vanishing(z, _sigmoid(_fast(z))), x.dtype)


@_quiet
def quick_gelu(x: HostArray, *, alpha: float = 1.702) -> HostArray:
    return cast(_vanishing(_sum(x), _sigmoid(_quick(x, alpha))), x.dtype)
