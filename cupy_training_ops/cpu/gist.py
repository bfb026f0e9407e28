# SPDX-License-Identifier: MIT
"""Gist activation codecs in NumPy. Formulas: the classes of the same names in `ops/gist.py`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ..dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Dtype, HostArray
from ..numerics import round_to_odd, truncated_float32

Shape = tuple[int, ...] | None

TILE = 8
E5M2 = ml_dtypes.float8_e5m2
# Of the NaN that a GPU's arithmetic and its conversions give.
NAN_BITS: dict[Dtype, np.unsignedinteger[Any]] = {
    FLOAT16: np.uint16(0x7FFF),
    BFLOAT16: np.uint16(0x7FFF),
    FLOAT32: np.uint32(0x7FFFFFFF),
    FLOAT64: np.uint64(0x7FFFFFFFE0000000),
}
# Signalling NaN, overflow to infinity and underflow are part of the codecs, not accidents.
_quiet = np.errstate(all="ignore")


@_quiet
def gist_binarize_encoder(x: HostArray) -> HostArray:
    return np.asarray(x > 0)


def gist_binarize_decoder(x: HostArray, *, to: Dtype, shape: Shape = None) -> HostArray:
    return x.astype(to).reshape(x.shape if shape is None else shape)


@_quiet
def gist_pack1_encoder(x: HostArray) -> HostArray:
    return np.packbits(np.ravel(x > 0))


def gist_pack1_decoder(x: HostArray, *, to: Dtype, shape: Shape = None) -> HostArray:
    bits = np.unpackbits(x.ravel())
    return _shaped(bits, shape, (bits.size,)).astype(to)


@_quiet
def gist_pack8_encoder(x: HostArray) -> HostArray:
    return round_to_odd(x).astype(E5M2).view(np.uint8)


@_quiet
def gist_pack8_decoder(x: HostArray, *, to: Dtype, shape: Shape = None) -> HostArray:
    halves = (x.astype(np.uint16) << 8).view(FLOAT16)
    return _shaped(halves, shape, x.shape).astype(to)


@_quiet
def gist_pack16_encoder(x: HostArray) -> HostArray:
    return x.astype(FLOAT16)


@_quiet
def gist_pack16_decoder(x: HostArray, *, to: Dtype, shape: Shape = None) -> HostArray:
    return _shaped(x, shape, x.shape).astype(to)


@_quiet
def gist_pack_msfp15_encoder(x: HostArray, *, keep_nonfinite: bool = False) -> HostArray:
    # MSFP15 only looks at the upper bits of a float32.
    bits = _tiles(truncated_float32(x.ravel()).view(np.uint32))
    exponent = bits >> 23 & 0xFF
    shared = exponent.max(axis=1, keepdims=True, initial=0)
    shift = np.minimum(shared - exponent, 31)
    truncated = ((bits & 0x7FFFFF) | 0x800000) >> 17 >> shift
    magnitude = np.minimum(truncated + 1, 127) >> 1
    element = np.where(exponent == 0, 0, (bits >> 25 & 0x40) | magnitude)
    codes = (shared >> np.arange(TILE, dtype=np.uint32) & 1) << 7 | element
    codes = np.where(shared == 255, 0x80 if keep_nonfinite else 0, codes).astype(np.uint8)
    return codes.reshape(x.shape if x.size % TILE == 0 else (-1,))


@_quiet
def gist_pack_msfp15_decoder(
    x: HostArray, *, to: Dtype, shape: Shape = None, keep_nonfinite: bool = False
) -> HostArray:
    tiles = x.reshape(-1, TILE)
    shared = (tiles >> 7).astype(np.int32) @ (1 << np.arange(TILE, dtype=np.int32))
    magnitude = (tiles & 0x3F).astype(np.float64)
    # Exact in float64, so the cast to float32 is the one rounding; + 0.0 makes -0 of M = 0 a +0.
    signed = np.where(tiles & 0x40, -magnitude, magnitude) + 0.0
    values = np.ldexp(signed, shared[:, None] - 132).astype(np.float32)
    decoded = _shaped(values, shape, x.shape).astype(to)
    if keep_nonfinite:
        lost = np.repeat(shared == 255, TILE)
        decoded[_shaped(lost, shape, x.shape)] = NAN_BITS[to].view(to)
    return decoded


def _shaped(flat: HostArray, shape: Shape, default: tuple[int, ...]) -> HostArray:
    """The first elements in the asked-for shape: the padding of the last tile falls off."""
    wanted = default if shape is None else shape
    return flat.ravel()[: int(np.prod(wanted, dtype=np.int64))].reshape(wanted)


def _tiles(flat: HostArray) -> HostArray:
    return np.pad(flat, (0, -flat.size % TILE)).reshape(-1, TILE)
