# SPDX-License-Identifier: MIT
"""Widening and rounding, as kernels do them: what planning and the NumPy reference share.

ml_dtypes rounds float64 to bfloat16 by way of float32, which may make a tie of what was none;
`cast` rounds once.
"""

from __future__ import annotations

import numpy as np

from ..dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Dtype, HostArray

_LARGEST = float(np.finfo(FLOAT32).max)

# A decorator of the NumPy functions without warnings: overflow, NaN and infinities are results of
# the operators, not accidents.
quiet = np.errstate(all="ignore")


def cast(x: HostArray | np.generic, dtype: Dtype) -> HostArray:
    """Return x in another dtype, rounded once, to nearest even."""
    return np.asarray(round_to_odd(x) if dtype == BFLOAT16 else x).astype(dtype)


def round_to_odd(x: HostArray | np.generic) -> HostArray:
    """Return float64 as float32 that rounds on to fewer bits as x itself would; others as they are.

    It is x rounded towards zero, with the last bit set if that was inexact: never a tie.
    """
    if x.dtype != FLOAT64:
        return np.asarray(x)
    toward_zero = truncated_float32(x)
    inexact = np.isfinite(toward_zero) & (toward_zero != x)
    return np.asarray(toward_zero.view(np.uint32) | inexact).view(FLOAT32)


def truncated_float32(x: HostArray | np.generic) -> HostArray:
    """Return x as float32 rounded towards zero; infinite from 2^128."""
    nearest = np.asarray(np.asarray(x).astype(FLOAT32))
    if x.dtype != FLOAT64:
        return nearest
    size = np.abs(x)
    away = (np.abs(nearest) > size) & (size < 2.0**128)  # rounded away from zero, may be to inf
    return np.asarray(nearest.view(np.uint32) - away).view(FLOAT32)  # one step nearer to zero


_NAN_BITS = {
    FLOAT16: 0x7E00, BFLOAT16: 0x7FC0, FLOAT32: 0x7FC0_0000, FLOAT64: 0x7FF8_0000_0000_0000
}  # fmt: skip


def put_nan(y: HostArray, where: HostArray, negative: HostArray) -> HostArray:
    """Write NaN into y where `where`, with a minus sign where `negative`; return y.

    All three are of one shape, the latter bool. Of a NaN's fraction only the highest bit is set.
    """
    if where.any():
        bits = y.view(f"u{y.itemsize}")
        signs = negative[where].astype(bits.dtype) << (8 * y.itemsize - 1)
        bits[where] = signs | bits.dtype.type(_NAN_BITS[y.dtype])
    return y


def convert(x: HostArray, dtype: Dtype) -> HostArray:
    """Return a copy in another float dtype; of a NaN's bits only the sign is copied."""
    y, nan = x.astype(dtype), np.isnan(x)
    if not nan.any():
        return y
    return put_nan(y, nan, x.view(f"u{x.itemsize}") >> (8 * x.itemsize - 1) != 0)


def odd_bits(x: HostArray | np.generic) -> HostArray:
    """Return x as bits of bfloat16 in uint16, rounded to odd.

    That is towards zero, with the last bit set if inexact, so that rounding it on to five fraction
    bits or fewer is the same as rounding x.
    """
    bits = round_to_odd(x).astype(FLOAT32, copy=False).view(np.uint32)
    return np.asarray((bits >> 16).astype(np.uint16) | ((bits & 0xFFFF) != 0))


def pad_tiles(flat: HostArray, tile: int) -> HostArray:
    """Return an array of rank 1 with zeros appended up to a multiple of `tile` elements."""
    missing = -flat.size % tile
    return np.pad(flat, (0, missing)) if missing else flat


def computed_in(t: Dtype) -> Dtype:
    """Return the dtype that elements of dtype `t` are computed in: float64 for float64, else
    float32."""
    return FLOAT64 if t == FLOAT64 else FLOAT32


def in_range(x: HostArray, t: Dtype) -> HostArray:
    """Return float64 x, made infinite beyond the range of the type that `t` is computed in."""
    beyond = np.abs(x) > np.finfo(computed_in(t)).max
    return np.where(beyond, np.copysign(np.inf, x), x)


def wide(x: HostArray) -> HostArray:
    """Return an array in the type that its elements are computed in, without a copy if it is."""
    return x.astype(computed_in(x.dtype), copy=False)


def round_number(value: float, t: Dtype) -> np.floating:
    """Return a number in the type that elements of `t` are computed in; infinite if beyond it."""
    number = float(value)
    kind: type[np.floating] = computed_in(t).type
    if abs(number) <= _LARGEST:  # nothing to be silenced
        return kind(number)
    with np.errstate(over="ignore"):
        return kind(number)
