# SPDX-License-Identifier: MIT
"""Operators on quantized numbers: an integer q is the code of (q - zero_point) scale.

xp: numpy or cupy. Other parameters: the operator's inputs in ONNX's order; attributes by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...dtypes import FLOAT32, FLOAT64, FLOATS, UINT8, Dtype, dtype_name
from ...errors import ArgumentError, DtypeError
from ...registry import get_op
from ..stored import BY_DTYPE, convert, graph_dtype, n_bits, type_name
from ..vectors import dense
from .reductions import Axes, product
from .table import Array, Module, axis_of, standard

INT32 = np.dtype(np.int32)
BYTES = (UINT8, np.dtype(np.int8))
WHOLE = ("uint8", "int8", "uint16", "int16", "uint4", "int4", "uint2", "int2")


@standard("QuantizeLinear", since=10)
def quantize_linear(
    xp: Module,
    x: Array,
    scale: Array,
    zero: Array = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: bool = True,
) -> Array:
    """Return x / scale + zero, rounded and clipped to the type of `zero` (uint8 without one).

    The quotient is rounded to the type of the scale, or of `precision`. scale, zero: one number, or
    one for each index of `axis`, or for each block of `block_size` of them.
    """
    dtype = graph_dtype(output_dtype) if output_dtype else UINT8
    if zero is not None:
        if output_dtype and zero.dtype != dtype:
            names = type_name(dtype), type_name(zero.dtype)
            raise DtypeError(f"y_zero_point: expected {names[0]} as output_dtype, got {names[1]}")
        dtype = zero.dtype
    exact = graph_dtype(precision) if precision else scale.dtype
    exact = exact if exact in FLOATS else FLOAT32
    factor = _spread(xp, scale, x.shape, axis, block_size, "y_scale")
    quotient = _in_float32(xp, x, exact) / _in_float32(xp, factor, exact)
    quotient = _in_float32(xp, quotient, exact)
    if type_name(dtype) in WHOLE:
        return _saturate(xp, quotient, zero, dtype, x.shape, axis, block_size)
    if zero is not None:
        places = _spread(xp, zero, x.shape, axis, block_size, "y_zero_point")
        quotient = quotient + places.astype(FLOAT32)
    return convert(xp, quotient, dtype, saturate=saturate)


def _in_float32(xp: Module, x: Array, exact: Dtype) -> Array:
    """Return x rounded to the type `exact`, as float32, or float64 if it is that."""
    return x.astype(exact).astype(FLOAT64 if exact == FLOAT64 else FLOAT32, copy=False)


def _spread(
    xp: Module, array: Array, shape: tuple[int, ...], axis: int, block_size: int, name: str
) -> Array:
    """Return scales or zero points in a form that broadcasts to `shape`.

    array: one number; one for each index of the axis; or one for each block of `block_size` indices
    of the axis, with all other axes. name: for messages.
    """
    if array.size == 1 and array.ndim < 2:
        return array.reshape(())
    place = axis_of(axis, len(shape))
    if array.ndim == 1 and not block_size:
        if array.size != shape[place]:
            raise ArgumentError(f"{name}: expected {shape[place]} elements, got {array.size}")
        return array.reshape([-1 if i == place else 1 for i in range(len(shape))])
    blocks = [-(-n // max(block_size, 1)) if i == place else n for i, n in enumerate(shape)]
    if block_size < 1 or array.shape != tuple(blocks):
        expected = f"shape {tuple(blocks)} for a block_size of {block_size}"
        raise ArgumentError(f"{name}: expected {expected}, got {array.shape}")
    cut = tuple(slice(0, n) for n in shape)
    return xp.repeat(array, block_size, axis=place)[cut]


def _saturate(
    xp: Module,
    quotient: Array,
    zero: Array,
    dtype: Dtype,
    shape: tuple[int, ...],
    axis: int = 1,
    block_size: int = 0,
) -> Array:
    """Return rint(quotient) + zero, clipped to the range of the integer type `dtype`, as that type.

    zero: None, one number, or one for each index of `axis`, or for each block of `block_size` of
    them. shape: of the quotient.
    """
    whole = xp.rint(quotient)
    if zero is not None:
        places = _spread(xp, zero, shape, axis, block_size, "y_zero_point")
        whole = whole + places.astype(whole.dtype)
    n = n_bits(dtype)
    is_signed = type_name(dtype).startswith("int")
    least, most = (-(2 ** (n - 1)), 2 ** (n - 1) - 1) if is_signed else (0, 2**n - 1)
    whole = xp.minimum(xp.maximum(whole, whole.dtype.type(least)), whole.dtype.type(most))
    return convert(xp, whole, dtype)


@standard("DequantizeLinear", since=10)
def dequantize_linear(
    xp: Module,
    x: Array,
    scale: Array,
    zero: Array = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Array:
    """Return (x - zero) scale in the scale's type, or that of `output_dtype`.

    scale, zero: one number, or one for each index of `axis`, or each block of `block_size` of them.
    """
    dtype = graph_dtype(output_dtype) if output_dtype else scale.dtype
    wide = FLOAT64 if x.dtype == INT32 else FLOAT32
    whole = x.astype(wide)
    if zero is not None:
        if zero.dtype != x.dtype:
            names = type_name(x.dtype), type_name(zero.dtype)
            raise DtypeError(f"x_zero_point: expected {names[0]} as x, got {names[1]}")
        whole = whole - _spread(xp, zero, x.shape, axis, block_size, "x_zero_point").astype(wide)
    factor = _spread(xp, scale, x.shape, axis, block_size, "x_scale").astype(wide)
    return convert(xp, whole * factor, dtype)


@standard("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(xp: Module, x: Array) -> tuple[Array, Array, Array]:
    """Return uint8 codes of x, their scale and zero point, for the range of x and 0."""
    nothing = xp.zeros(1, x.dtype)
    flat = xp.concatenate([x.reshape(-1), nothing])
    least, most = flat.min(), flat.max()
    scale = (most - least) / x.dtype.type(255)
    start = xp.where(scale == 0, nothing[0], -least / scale)  # of x all 0, the scale is 0
    zero = xp.rint(xp.minimum(xp.maximum(start, x.dtype.type(0)), x.dtype.type(255)))
    quotient = xp.where(scale == 0, nothing[0], x / scale)
    zero = xp.asarray(zero.astype(UINT8))
    return _saturate(xp, quotient, zero, UINT8, x.shape), xp.asarray(scale), zero


# ---- products: whole numbers below 2^53 are exact in float64 -------------------------------------


@standard("MatMulInteger", since=10)
def matmul_integer(
    xp: Module, a: Array, b: Array, a_zero: Array = None, b_zero: Array = None
) -> Array:
    return _to_int32(_product_of_codes(xp, a, a_zero, b, b_zero))


def _to_int32(whole: Array) -> Array:
    """Return sums as int32; larger ones wrap around."""
    return whole.astype(np.int64).astype(INT32)


def _product_of_codes(xp: Module, a: Array, a_zero: Array, b: Array, b_zero: Array) -> Array:
    return product(xp, _centre(a, a_zero, -2, "a"), _centre(b, b_zero, -1, "b"))


def _centre(x: Array, zero: Array, axis: int, name: str) -> Array:
    """Return x - zero in float64; a zero that is a vector has one for each index of the axis."""
    _refuse_other_codes(x.dtype, name)
    if zero is None:
        return x.astype(FLOAT64)
    if zero.dtype != x.dtype:
        names = dtype_name(x.dtype), dtype_name(zero.dtype)
        raise DtypeError(f"{name}_zero_point: expected {names[0]} as {name}, got {names[1]}")
    places = _each_along(zero, x.shape, axis, f"{name}_zero_point")
    return x.astype(FLOAT64) - places.astype(FLOAT64)


def _refuse_other_codes(dtype: Dtype, name: str) -> None:
    """Refuse an input `name` of another type than uint8 and int8."""
    if dtype not in BYTES:
        got = type_name(dtype) if dtype in BY_DTYPE else dtype_name(dtype)
        raise DtypeError(f"{name}: expected uint8 or int8, got {got}")


def _each_along(array: Array, shape: tuple[int, ...], axis: int, name: str) -> Array:
    """Return scales or zero points in a form that broadcasts to `shape`.

    array: one number, one for each index of `axis` (-1 or -2), or an array of extent 1 along the
    other of the last two axes. name: for messages.
    """
    if array.size == 1:
        return array.reshape(())
    each = [1] * len(shape)
    if len(shape) > 1:
        each[axis] = shape[axis]
    if array.ndim == 1 and array.size == math.prod(each):
        return array.reshape(each)
    expected = (*shape[:-2], *each[-2:])
    if array.ndim != len(shape) or array.shape != expected:
        raise ArgumentError(f"{name}: expected shape {expected}, got {array.shape}")
    return array


def _refuse_float_codes(_: Mapping[str, Any], dtypes: Sequence[Dtype | None]) -> None:
    """Refuse a and b, inputs 0 and 3, of another type than uint8 and int8."""
    for name, dtype in zip("ab", (dtypes[0], dtypes[3]), strict=True):
        if dtype is not None:
            _refuse_other_codes(dtype, name)


@standard("QLinearMatMul", since=10, refuse_types=_refuse_float_codes)
def qlinear_matmul(
    xp: Module,
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    y_scale: Array,
    y_zero: Array,
) -> Array:
    """Return the codes of a b: ((a - a_zero) a_scale) ((b - b_zero) b_scale) / y_scale + y_zero."""
    _refuse_other_codes(y_zero.dtype, "y_zero_point")
    whole = _product_of_codes(xp, a, a_zero, b, b_zero).astype(FLOAT32)
    rows = _each_along(a_scale, a.shape, -2, "a_scale").astype(FLOAT32)
    columns = _each_along(b_scale, b.shape, -1, "b_scale").astype(FLOAT32)
    if y_scale.size != 1 or y_zero.size != 1:
        raise ArgumentError(f"y_scale: expected one for the whole result, got {y_scale.shape}")
    factor = rows * columns / y_scale.reshape(()).astype(FLOAT32)
    return _saturate(xp, whole * factor, y_zero.reshape(()), y_zero.dtype, whole.shape)


def _conv(xp: Module, x: Array, w: Array, attributes: dict[str, Any]) -> Array:
    """Return the convolution of x and w by Conv; attributes of None are left out."""
    chosen = {name: value for name, value in attributes.items() if value is not None}
    return get_op("Conv").shared(**chosen)(dense(xp, x), dense(xp, w))


def _by_filter(array: Array, rank: int, n: int, name: str) -> Array:
    """Return one number as a scalar, n numbers, one of each filter, as (n, 1, ...) of a rank."""
    if array.size == 1:
        return array.reshape(())
    if array.shape != (n,):
        raise ArgumentError(f"{name}: expected one, or one for each of {n}, got {array.shape}")
    return array.reshape(n, *[1] * (rank - 1))


def _centre_filters(w: Array, zero: Array) -> Array:
    """Return w - zero in float64; zero: one number, one for each filter, or None."""
    _refuse_other_codes(w.dtype, "w")
    if zero is None:
        return w.astype(FLOAT64)
    zeros = _by_filter(zero, w.ndim, w.shape[0], "w_zero_point")
    return w.astype(FLOAT64) - zeros.astype(FLOAT64)


def _centre_input(x: Array, zero: Array) -> Array:
    """Return x - zero in float64; zero: one number, or None."""
    _refuse_other_codes(x.dtype, "x")
    if zero is None:
        return x.astype(FLOAT64)
    if zero.size != 1:
        raise ArgumentError(f"x_zero_point: expected one for the whole input, got {zero.shape}")
    return x.astype(FLOAT64) - zero.reshape(()).astype(FLOAT64)


@standard("ConvInteger", since=10)
def conv_integer(
    xp: Module,
    x: Array,
    w: Array,
    x_zero: Array = None,
    w_zero: Array = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Axes = None,
    group: int = 1,
    kernel_shape: Axes = None,
    pads: Axes = None,
    strides: Axes = None,
) -> Array:
    """Return the int32 convolution of x - x_zero and w - w_zero; pads are of x_zero, so of 0."""
    attributes = {"auto_pad": auto_pad, "dilations": dilations, "group": group}
    attributes |= {"kernel_shape": kernel_shape, "pads": pads, "strides": strides}
    y = _conv(xp, _centre_input(x, x_zero), _centre_filters(w, w_zero), attributes)
    return _to_int32(y)


@standard("QLinearConv", since=10)
def qlinear_conv(
    xp: Module,
    x: Array,
    x_scale: Array,
    x_zero: Array,
    w: Array,
    w_scale: Array,
    w_zero: Array,
    y_scale: Array,
    y_zero: Array,
    bias: Array = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Axes = None,
    group: int = 1,
    kernel_shape: Axes = None,
    pads: Axes = None,
    strides: Axes = None,
) -> Array:
    """Return the codes of a convolution of quantized arrays; bias: int32, of x_scale w_scale."""
    _refuse_other_codes(y_zero.dtype, "y_zero_point")
    attributes = {"auto_pad": auto_pad, "dilations": dilations, "group": group}
    attributes |= {"kernel_shape": kernel_shape, "pads": pads, "strides": strides}
    whole = _conv(xp, _centre_input(x, x_zero), _centre_filters(w, w_zero), attributes)
    each = (-1, *[1] * (x.ndim - 2))
    if bias is not None:
        whole = whole + bias.astype(FLOAT64).reshape(each)
    scales = _by_filter(w_scale, x.ndim - 1, w.shape[0], "w_scale")
    factor = x_scale.reshape(()) * scales / y_scale.reshape(())
    quotient = whole.astype(FLOAT32) * factor
    return _saturate(xp, quotient, y_zero.reshape(()), y_zero.dtype, whole.shape)
