# SPDX-License-Identifier: MIT
"""Widening and rounding, as kernels do them: what planning and the NumPy reference share.

ml_dtypes rounds float64 to bfloat16 by way of float32, which may make a tie of what was none;
`cast` rounds once.
"""

from __future__ import annotations

import numpy as np

from ..dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Dtype, HostArray

_LARGEST = float(np.finfo(FLOAT32).max)

# A decorator of the NumPy functions: overflow, and what comes of NaN and infinities, are part of
# the operators, and no accidents.
quiet = np.errstate(all="ignore")


def cast(x: HostArray | np.generic, dtype: Dtype) -> HostArray:
    """x in another dtype, rounded once, to nearest even."""
    return np.asarray(round_to_odd(x) if dtype == BFLOAT16 else x).astype(dtype)


def round_to_odd(x: HostArray | np.generic) -> HostArray:
    """float64 as float32 that rounds to fewer bits as float64 does: an inexact one ends in a 1."""
    if x.dtype != FLOAT64:
        return np.asarray(x)
    toward_zero = truncated_float32(x)
    inexact = np.isfinite(toward_zero) & (toward_zero != x)
    return np.asarray(toward_zero.view(np.uint32) | inexact).view(FLOAT32)


def truncated_float32(x: HostArray | np.generic) -> HostArray:
    """float32 rounded towards zero, infinite from 2^128."""
    nearest = np.asarray(np.asarray(x).astype(FLOAT32))
    if x.dtype != FLOAT64:
        return nearest
    size = np.abs(x)
    away = (np.abs(nearest) > size) & (size < 2.0**128)
    return np.asarray(nearest.view(np.uint32) - away).view(FLOAT32)  # one step nearer to zero


_NAN_BITS = {
    FLOAT16: 0x7E00, BFLOAT16: 0x7FC0, FLOAT32: 0x7FC0_0000, FLOAT64: 0x7FF8_0000_0000_0000
}  # fmt: skip


def put_nan(y: HostArray, where: HostArray, negative: HostArray) -> HostArray:
    """Put the NaN with the highest fraction bit alone into y, with these signs; return y."""
    if where.any():
        bits = y.view(f"u{y.itemsize}")
        signs = negative[where].astype(bits.dtype) << (8 * y.itemsize - 1)
        bits[where] = signs | bits.dtype.type(_NAN_BITS[y.dtype])
    return y


def convert(x: HostArray, dtype: Dtype) -> HostArray:
    """A copy in another dtype; a NaN keeps its sign and nothing else."""
    y, nan = x.astype(dtype), np.isnan(x)
    if not nan.any():
        return y
    return put_nan(y, nan, x.view(f"u{x.itemsize}") >> (8 * x.itemsize - 1) != 0)


def odd_bits(x: HostArray | np.generic) -> HostArray:
    """The bits of x in bfloat16, rounded to odd: to five fraction bits or fewer it rounds as x."""
    bits = round_to_odd(x).astype(FLOAT32, copy=False).view(np.uint32)
    return np.asarray((bits >> 16).astype(np.uint16) | ((bits & 0xFFFF) != 0))


def pad_tiles(flat: HostArray, tile: int) -> HostArray:
    """The array with zeros behind the last element, up to whole tiles."""
    missing = -flat.size % tile
    return np.pad(flat, (0, missing)) if missing else flat


def computed_in(t: Dtype) -> Dtype:
    """The type that elements of `t` are computed in: float64 stays, all others become float32."""
    return FLOAT64 if t == FLOAT64 else FLOAT32


def in_range(x: HostArray, t: Dtype) -> HostArray:
    """float64, infinite where the type that elements of `t` are computed in does not hold it."""
    beyond = np.abs(x) > np.finfo(computed_in(t)).max
    return np.where(beyond, np.copysign(np.inf, x), x)


def wide(x: HostArray) -> HostArray:
    """A NumPy array in the type that is computed in."""
    return x.astype(computed_in(x.dtype), copy=False)


def round_number(value: float, t: Dtype) -> np.floating:
    """A number in the type that elements of `t` are computed in, infinite where it does not fit."""
    number = float(value)
    kind: type[np.floating] = computed_in(t).type
    if abs(number) <= _LARGEST:  # nothing to be silenced
        return kind(number)
    with np.errstate(over="ignore"):
        return kind(number)
