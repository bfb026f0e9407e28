# SPDX-License-Identifier: MIT
"""Activations and their gradients in NumPy. Formulas: the classes in `operators.py`.

Slopes and values of the Gelu family are worked out in float64, so that they are accurate to the
last digit of what the kernels compute in. NumPy has no erfc: a polynomial stands for
it here, which is not the kernels' (tests/test_polynomials.py says how near).

x, a and b are an activation's inputs, y its output. dtype, of functions with float64 numbers: that
of the result, by which they are as precise as it shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...dtypes import FLOAT32, FLOAT64, Dtype, HostArray
from ...rules.widening import cast, computed_in, quiet, round_number, wide
from .facts import NORMAL_END

_FAST = 2 * math.sqrt(2 / math.pi)
# P of e^(t^2 / 2) Phi(-t) = w P(v), w = (34 / 15) / (1 + 3/16 t), v = w - 19/15 from -1 to 1,
# by what is computed in: within 2e-16, and within 3e-10 for t up to 15, where float32 ends.
_SCALED_TAIL = {
    FLOAT64: (
        3.063191334172879e-11, -7.554487165562867e-11, -4.707678883012089e-10,
        1.0226711959229907e-09, 5.054482549200915e-09, -8.551102258188336e-09,
        -5.4825431099900645e-08, 3.9084759062839497e-08, 6.221639940359643e-07,
        5.577935887711008e-07, -6.0779708932883235e-06, -2.270741753822366e-05,
        5.754476713967046e-06, 0.00034864755394913943, 0.0017335660982671255, 0.005495715117431448,
        0.013282664756741879, 0.026072653247910093, 0.04281740653510379, 0.0597104663928695,
        0.07114898527628079,
    ),
    FLOAT32: (
        1.4083192694384165e-06, -5.505527264352323e-06, -2.3821431117597338e-05,
        5.601119474378313e-06, 0.00034920489218991986, 0.0017335683170679056, 0.00549558910178367,
        0.013282667515986404, 0.026072665157559988, 0.04281740641326943, 0.05971046607556855,
        0.07114898527544153,
    ),
}  # fmt: skip


def _polynomial(x: HostArray, coefficients: Sequence[float]) -> HostArray:
    """Return the polynomial with these coefficients, the highest power's first, by Horner.

    In place: 40 new arrays would take longer than 40 operations.
    """
    value = x * coefficients[0]
    for coefficient in coefficients[1:-1]:
        value += coefficient
        value *= x
    value += coefficients[-1]
    return value


def _bell(t: HostArray, dtype: Dtype) -> HostArray:
    """Return e^(-t^2 / 2), as precise as results in `dtype` need it."""
    if dtype != FLOAT64:
        return np.exp(-0.5 * t * t)
    upper = t.astype(FLOAT32).astype(FLOAT64)  # its square is exact: no digit of t^2 is lost
    return np.exp(-0.5 * upper * upper) * np.exp((upper - t) * (upper + t) * 0.5)


def _tail(t: HostArray, bell: HostArray, dtype: Dtype) -> HostArray:
    """Return Phi(-t) of t >= 0, Phi the standard normal's distribution function, bell: _bell(t)."""
    w = (34 / 15 * 16 / 3) / (t + 16 / 3)
    return bell * w * _polynomial(w - 19 / 15, _SCALED_TAIL[computed_in(dtype)])


def _sigmoid(v: HostArray) -> HostArray:
    return np.asarray(1 / (1 + np.exp(-v)))


def _fast(z: HostArray) -> HostArray:
    """Return v of FastGelu(z) = z sigmoid(v)."""
    return _FAST * (z + 0.044715 * z * z * z)


def _widen(x: HostArray, bias: HostArray | None = None) -> HostArray:
    """Return x in float64, plus a row `bias` where there is one."""
    z = x.astype(FLOAT64)
    return z if bias is None else np.asarray(z + bias.astype(FLOAT64))


def _quick(x: HostArray, alpha: float) -> HostArray:
    """Return alpha x in float64, alpha rounded as kernels do."""
    return np.asarray(float(round_number(alpha, x.dtype)) * _widen(x))


def _vanishing(x: HostArray, factor: HostArray) -> HostArray:
    """Return x times a factor, 0 where that is 0: it goes to 0 faster than x to infinity."""
    return np.where(factor == 0, factor, x * factor)


def _gelu(z: HostArray, dtype: Dtype) -> HostArray:
    """Return z Phi(z), rounded to dtype, as max(z, 0) - t Phi(-t), t = |z|."""
    t = np.minimum(np.abs(z), NORMAL_END)
    return cast(np.maximum(z, 0) - t * _tail(t, _bell(t, dtype), dtype), dtype)


def _gelu_slope(z: HostArray, dtype: Dtype) -> HostArray:
    """Return Phi(z) + z phi(z), phi the standard normal's density, as precise as `dtype` shows."""
    near = np.clip(z, -NORMAL_END, NORMAL_END)
    bell = _bell(near, dtype)
    tail = _tail(np.abs(near), bell, dtype)
    # Phi(z): 1 - tail for positive z, 0 + tail for negative, without a branch.
    return ~np.signbit(z) - np.copysign(tail, z) + near * bell * (1 / math.sqrt(2 * math.pi))


def _gate_slope(v: HostArray, w: HostArray) -> HostArray:
    """Return d/dx of x s(v): s + w s (1 - s), s = 1 / (1 + exp(-v)), w = x dv/dx."""
    return _sigmoid(v) + _vanishing(w, _sigmoid(v) * _sigmoid(-v))


def _fast_slope(z: HostArray) -> HostArray:
    """Return the derivative of FastGelu."""
    return _gate_slope(_fast(z), _FAST * (z + 3 * 0.044715 * z * z * z))


def _product(dy: HostArray, slope: HostArray) -> HostArray:
    """Return dy times slope, multiplied in the computing type, in dy's dtype."""
    wide_dy = wide(dy)
    return np.asarray(wide_dy * slope.astype(wide_dy.dtype)).astype(dy.dtype)


@quiet
def relu_grad(dy: HostArray, x: HostArray) -> HostArray:
    return np.where(x > 0, dy, np.zeros_like(dy))


@quiet
def leaky_relu_grad(dy: HostArray, y: HostArray, *, alpha: float) -> HostArray:
    return np.where(y > 0, dy, (wide(dy) * alpha).astype(dy.dtype))


@quiet
def sigmoid_grad(dy: HostArray, y: HostArray) -> HostArray:
    return np.asarray(wide(dy) * wide(y) * (1 - wide(y))).astype(dy.dtype)


@quiet
def tanh_grad(dy: HostArray, y: HostArray) -> HostArray:
    return _product(dy, 1 - wide(y) * wide(y))


@quiet
def gelu_grad(dy: HostArray, x: HostArray) -> HostArray:
    return _product(dy, _gelu_slope(_widen(x), x.dtype))


@quiet
def fast_gelu_grad(dy: HostArray, x: HostArray) -> HostArray:
    return _product(dy, _fast_slope(_widen(x)))


@quiet
def quick_gelu_grad(dy: HostArray, x: HostArray, *, alpha: float) -> HostArray:
    v = _quick(x, alpha)
    return _product(dy, _gate_slope(v, v))


@quiet
def bias_gelu_grad_dx(dy: HostArray, x: HostArray, b: HostArray) -> HostArray:
    return _product(dy, _gelu_slope(_widen(x, b), x.dtype))


@quiet
def bias_fast_gelu_grad_dx(dy: HostArray, x: HostArray, b: HostArray) -> HostArray:
    return _product(dy, _fast_slope(_widen(x, b)))


@quiet
def gelu(x: HostArray) -> HostArray:
    return _gelu(_widen(x), x.dtype)


@quiet
def bias_gelu(a: HostArray, b: HostArray) -> HostArray:
    return _gelu(_widen(a, b), a.dtype)


@quiet
def fast_gelu(x: HostArray, bias: HostArray | None) -> HostArray:
    z = _widen(x, bias)
    return cast(_vanishing(z, _sigmoid(_fast(z))), x.dtype)


@quiet
def quick_gelu(x: HostArray, *, alpha: float) -> HostArray:
    return cast(_vanishing(_widen(x), _sigmoid(_quick(x, alpha))), x.dtype)


@quiet
def swi_glu(a: HostArray, b: HostArray) -> HostArray:
    z = _widen(a)
    return cast(_vanishing(z, _sigmoid(z)) * _widen(b), a.dtype)


@quiet
def swi_glu_grad(dy: HostArray, a: HostArray, b: HostArray) -> tuple[HostArray, HostArray]:
    z = _widen(a)
    return _gate_gradients(dy, b, _vanishing(z, _sigmoid(z)), _gate_slope(z, z))


def swi_glu_halves(x: HostArray) -> HostArray:
    return swi_glu(*np.split(x, 2, -1))


def swi_glu_halves_grad(dy: HostArray, x: HostArray) -> HostArray:
    return np.concatenate(swi_glu_grad(dy, *np.split(x, 2, -1)), -1)


@quiet
def fast_ge_glu(a: HostArray, b: HostArray) -> HostArray:
    z = _widen(a)
    return cast(_vanishing(z, _sigmoid(_fast(z))) * _widen(b), a.dtype)


@quiet
def fast_ge_glu_grad(dy: HostArray, a: HostArray, b: HostArray) -> tuple[HostArray, HostArray]:
    z = _widen(a)
    return _gate_gradients(dy, b, _vanishing(z, _sigmoid(_fast(z))), _fast_slope(z))


def _gate_gradients(
    dy: HostArray, b: HostArray, gate: HostArray, slope: HostArray
) -> tuple[HostArray, HostArray]:
    """Return dA = dY B slope and dB = dY gate, for gate(A) B; slope: the gate's derivative."""
    wide_dy = _widen(dy)
    return cast(wide_dy * _widen(b) * slope, dy.dtype), cast(wide_dy * gate, dy.dtype)
