# SPDX-License-Identifier: MIT
"""Operators that work element by element, with NumPy's broadcasting.

xp: numpy or cupy. Other parameters: the operator's inputs in ONNX's order; attributes by name.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...device import recording
from ...dtypes import element_type
from ...errors import ArgumentError, DtypeError
from ...registry import get_op
from ..graph import may_repeat_to
from ..vectors import EXPRESSIONS, compute, dense
from .table import Array, Function, Module, in_float32, standard

_SMALL = 1e-3  # below it two terms of erf's series are enough for float64

UNARY = {
    "Abs": "abs",
    "Acos": "arccos",
    "Acosh": "arccosh",
    "Asin": "arcsin",
    "Asinh": "arcsinh",
    "Atan": "arctan",
    "Atanh": "arctanh",
    "BitwiseNot": "invert",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Exp": "exp",
    "Floor": "floor",
    "Log": "log",
    "Neg": "negative",
    "Not": "logical_not",
    "Reciprocal": "reciprocal",
    "Round": "rint",
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "Sqrt": "sqrt",
    "Tan": "tan",
    "Tanh": "tanh",
}
BINARY = {
    "Add": "add",
    "And": "logical_and",
    "Mul": "multiply",
    "Or": "logical_or",
    "Sub": "subtract",
    "Xor": "logical_xor",
}
COMPARISONS = {
    "Equal": "equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
}
VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


def _compute(xp: Module, name: str, operands: Sequence[Array], out: Array = None) -> Array | None:
    """Return the result of EXPRESSIONS[name]; None where no kernel here does it, as on NumPy."""
    return None if xp is np else compute(name, operands, out)


def _unary(name: str) -> Function:
    """Return f(xp, x), by the kernel of EXPRESSIONS[name], else by the module's own function."""
    has_kernel = name in EXPRESSIONS

    def unary(xp: Module, x: Array, out: Array = None) -> Array:
        result = _compute(xp, name, (x,), out) if has_kernel else None
        return getattr(xp, name)(x, out=out) if result is None else result

    return unary


def _binary(name: str) -> Function:
    """Return f(xp, x, y), by the kernel of EXPRESSIONS[name], else by the module's function."""
    has_kernel = name in EXPRESSIONS

    def binary(xp: Module, x: Array, y: Array, out: Array = None) -> Array:
        refuse_mixed(x, y)
        result = _compute(xp, name, (x, y), out) if has_kernel else None
        return getattr(xp, name)(x, y, out=out) if result is None else result

    return binary


def _variadic(name: str) -> Function:
    """Return f(xp, x, y, ...), which applies the binary function of this name from the left."""
    binary = _binary(name)

    def variadic(xp: Module, *arrays: Array) -> Array:
        return functools.reduce(functools.partial(binary, xp), arrays)

    return variadic


for _operator, _name in UNARY.items():
    standard(_operator, overwrites=(0,), noted=_name in EXPRESSIONS)(_unary(_name))
for _operator, _name in BINARY.items():
    standard(_operator, since=7, overwrites=(0, 1), noted=_name in EXPRESSIONS)(_binary(_name))
for _operator, _name in COMPARISONS.items():
    standard(_operator, since=7)(_binary(_name))
for _operator, _name in VARIADIC.items():  # one array comes back itself
    standard(_operator, since=6, view=True, noted=_name in EXPRESSIONS)(_variadic(_name))


def refuse_mixed(x: Array, y: Array) -> None:
    """Refuse arrays of two types, of which NumPy would make a third."""
    if x.dtype != y.dtype:
        names = element_type(x.dtype).name, element_type(y.dtype).name
        raise DtypeError(f"B: expected {names[0]} as the others, got {names[1]}")


def refuse_zeros(divisor: Array) -> None:
    """Refuse an integer 0 in what is divided by, where that is on the host."""
    if isinstance(divisor, np.ndarray) and divisor.dtype.kind in "iu" and not divisor.all():
        raise ArgumentError("B: expected no 0 among integers that are divided by")


def scalar(x: Array, value: float) -> Any:
    """Return a number as a NumPy scalar of x's type."""
    return x.dtype.type(value)


@standard("Mean", since=6)
@in_float32
def mean(xp: Module, *arrays: Array) -> Array:
    return functools.reduce(xp.add, arrays) / scalar(arrays[0], len(arrays))


@standard("Div", since=7, overwrites=(0, 1), noted=True)
def div(xp: Module, x: Array, y: Array, out: Array = None) -> Array:
    """Return x / y; of integers truncated towards 0."""
    refuse_mixed(x, y)
    if x.dtype.kind in "iu":
        recording.leave()
        refuse_zeros(y)
        return xp.floor_divide(x - xp.fmod(x, y), y, out=out)
    result = _compute(xp, "divide", (x, y), out)
    return xp.divide(x, y, out=out) if result is None else result


@standard("Mod")
def mod(xp: Module, x: Array, y: Array, *, fmod: bool = False) -> Array:
    refuse_mixed(x, y)
    refuse_zeros(y)
    return (xp.fmod if fmod else xp.mod)(x, y)


square = _unary("square")


@standard("Pow", since=7, noted=True)
def pow_(xp: Module, x: Array, y: Array) -> Array:
    """Return x^y in x's type; exponents 2 and 0.5, where the host has y, as square and root."""
    if y.ndim == 0 and y.dtype.kind in "iuf" and isinstance(y, np.ndarray):
        if y == 2:
            return square(xp, x)
        recording.leave()
        if y == 0.5 and x.dtype.kind == "f":  # a root of -inf would be NaN, one of -0.0 is -0.0
            return xp.where(x == -math.inf, scalar(x, math.inf), xp.sqrt(x + scalar(x, 0)))
    recording.leave()
    return xp.power(x, y).astype(x.dtype, copy=False)


@standard("Relu", overwrites=(0,), noted=True)
def relu(xp: Module, x: Array, out: Array = None) -> Array:
    result = _compute(xp, "relu", (x,), out)
    return xp.maximum(x, scalar(x, 0), out=out) if result is None else result


@standard("LeakyRelu")
def leaky_relu(xp: Module, x: Array, *, alpha: float = 0.01) -> Array:
    return xp.where(x >= 0, x, x * scalar(x, alpha))


@standard("PRelu", since=7)
def prelu(xp: Module, x: Array, slope: Array) -> Array:
    if not may_repeat_to(slope.shape, x.shape):
        expected = f"a shape that is repeated to X's {x.shape}"
        raise ArgumentError(f"slope: expected {expected}, got {slope.shape}")
    return xp.where(x >= 0, x, x * slope)


@standard("ThresholdedRelu")
def thresholded_relu(xp: Module, x: Array, *, alpha: float = 1.0) -> Array:
    return xp.where(x > scalar(x, alpha), x, scalar(x, 0))


@standard("Elu")
def elu(xp: Module, x: Array, *, alpha: float = 1.0) -> Array:
    return xp.where(x > 0, x, scalar(x, alpha) * xp.expm1(xp.minimum(x, scalar(x, 0))))


@standard("Celu")
def celu(xp: Module, x: Array, *, alpha: float = 1.0) -> Array:
    a = scalar(x, alpha)
    return xp.where(x > 0, x, a * xp.expm1(xp.minimum(x, scalar(x, 0)) / a))


@standard("Selu")
def selu(
    xp: Module,
    x: Array,
    *,
    alpha: float = 1.67326319217681884765625,
    gamma: float = 1.05070102214813232421875,
) -> Array:
    """Return gamma x where x > 0, else gamma alpha (e^x - 1)."""
    return elu(xp, x, alpha=alpha) * scalar(x, gamma)


@standard("Sigmoid", noted=True)
def sigmoid(xp: Module, x: Array) -> Array:
    """Return 1 / (1 + e^-x), as e^x / (1 + e^x) of a negative x, so that no e^ overflows."""
    result = _compute(xp, "sigmoid", (x,))
    if result is not None:
        return result
    small = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, scalar(x, 1), small) / (small + scalar(x, 1))


@standard("HardSigmoid")
def hard_sigmoid(xp: Module, x: Array, *, alpha: float = 0.2, beta: float = 0.5) -> Array:
    return clip_6(xp, x * scalar(x, alpha) + scalar(x, beta), min=0, max=1)


@standard("HardSwish")
def hard_swish(xp: Module, x: Array) -> Array:
    return x * hard_sigmoid(xp, x, alpha=1 / 6)


@standard("Softplus")
def softplus(xp: Module, x: Array) -> Array:
    return xp.log1p(xp.exp(-xp.abs(x))) + xp.maximum(x, scalar(x, 0))


@standard("Softsign")
def softsign(xp: Module, x: Array) -> Array:
    return x / (xp.abs(x) + scalar(x, 1))


@standard("Mish")
def mish(xp: Module, x: Array) -> Array:
    return x * xp.tanh(softplus(xp, x))


@standard("ai.onnx.ml.Binarizer")
def binarizer(xp: Module, x: Array, *, threshold: float = 0.0) -> Array:
    return (x > scalar(x, threshold)).astype(x.dtype)


@standard("Erf", noted=True)
def erf(xp: Module, x: Array) -> Array:
    """Return erf(x); with NumPy, which lacks it, by erf(x) = 2 gelu(z) / z - 1, z = sqrt(2) x.

    Near 0 that loses digits; two terms of the series are enough there.
    """
    if xp is not np:
        result = _compute(xp, "erf", (x,))
        return _erf_by_cupy(x) if result is None else result
    z = math.sqrt(2) * x.astype(np.float64)
    with np.errstate(all="ignore"):
        far = 2 * get_op("Gelu").shared()(dense(np, z)) / z - 1
    near = 2 / math.sqrt(math.pi) * (x - x.astype(np.float64) ** 3 / 3)
    y = np.where(np.abs(x) < _SMALL, near, np.where(np.isinf(z), np.sign(z), far))
    return y.astype(x.dtype)


def _erf_by_cupy(x: Array) -> Array:
    from cupyx.scipy import special

    return special.erf(x).astype(x.dtype, copy=False)  # of half types it makes float64


@standard("Gelu", since=20, noted=True, only={"approximate": ("none", "tanh")})
def gelu(xp: Module, x: Array, *, approximate: str = "none") -> Array:
    name = "Gelu" if approximate == "none" else "FastGelu"
    return get_op(name).shared()(dense(xp, x))


@standard("IsNaN")
def is_nan(xp: Module, x: Array) -> Array:
    return xp.isnan(x)


@standard("IsInf")
def is_inf(
    xp: Module, x: Array, *, detect_negative: bool = True, detect_positive: bool = True
) -> Array:
    """Return True where x is an infinity of a sign that is looked for."""
    y = xp.isinf(x)
    if not detect_negative:
        y &= x > 0
    return y if detect_positive else y & (x < 0)


@standard("Clip", until=10)
def clip_6(xp: Module, x: Array, *, min: float = -math.inf, max: float = math.inf) -> Array:
    """Return x clipped to min and max, in its type; NumPy's `clip` would widen bfloat16."""
    return xp.minimum(xp.maximum(x, scalar(x, min)), scalar(x, max))


@standard("Clip", since=11, view=True)
def clip(xp: Module, x: Array, low: Array = None, high: Array = None) -> Array:
    """Return x clipped to low and high, each None for no bound; high where that is below low."""
    if low is not None:
        x = xp.maximum(x, low)
    return x if high is None else xp.minimum(x, high)


@standard("Where", noted=True)
def where(xp: Module, condition: Array, x: Array, y: Array) -> Array:
    result = _compute(xp, "where", (condition, x, y))
    return xp.where(condition, x, y) if result is None else result


@standard("BiasGelu")
def bias_gelu(xp: Module, x: Array, bias: Array) -> Array:
    return get_op("Gelu").shared()(dense(xp, x + bias))
