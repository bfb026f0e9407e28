# SPDX-License-Identifier: MIT
"""Gist codecs of numbers in few bits, in NumPy. Formulas: the classes in `operators.py`."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ...dtypes import BFLOAT16, FLOAT16, FLOAT32, Dtype, HostArray
from ...rules.widening import computed_in, converted, odd_bits, padded, put_nan, wide
from .facts import BLOCK, SCALES_NBYTES, TILE

Shape = tuple[int, ...] | None

INT16 = np.dtype(np.int16)
# Overflow, underflow and signalling NaN are part of the codecs, not accidents.
_quiet = np.errstate(all="ignore")


def _fp10(x: HostArray) -> HostArray:
    """float32 to FP10 codes: what is added makes the last place of a sum the code's."""
    bits = x.view(np.uint32)
    size = bits & 0x7FFFFFFF
    subnormal = (size.view(FLOAT32) + FLOAT32.type(32)).view(np.uint32) - 0x42000000
    rounded = (size + 0x3FFFF + (size >> 19 & 1)) >> 19
    code = np.where(size < 0x38800000, subnormal, np.minimum(rounded - 1792, 0x1F0))
    code[size > 0x7F800000] = 0x1F8
    return np.asarray(code | bits >> 22 & 0x200).astype(np.uint16)


_ODD = np.arange(2**16, dtype=np.uint16).view(BFLOAT16)  # numbers rounded to odd
with _quiet:  # look-ups take a fraction of the time of conversions
    _FP10_OF_ODD = _fp10(_ODD.astype(FLOAT32))
    _E4M3_OF_ODD = _ODD.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    _E5M2_OF_ODD = _ODD.astype(ml_dtypes.float8_e5m2).view(np.uint8)
_VALUE_OF_FP10 = (np.arange(2**10, dtype=np.uint16) << 6).view(FLOAT16)
_CODES = np.arange(2**8, dtype=np.uint8)
_VALUE_OF_E4M3 = _CODES.view(ml_dtypes.float8_e4m3fn)
_VALUE_OF_E5M2 = _CODES.view(ml_dtypes.float8_e5m2)


def _shaped(flat: HostArray, shape: Shape) -> HostArray:
    """The first elements in the asked-for shape, all of them where there is none."""
    return flat if shape is None else flat[: int(np.prod(shape, dtype=np.int64))].reshape(shape)


# ---- FP10 ----------------------------------------------------------------------------------------


@_quiet
def gist_fp10_encoder(x: HostArray) -> HostArray:
    codes = np.take(_FP10_OF_ODD, padded(odd_bits(x.ravel()), 3)).astype(np.uint32)
    return codes[::3] | codes[1::3] << 10 | codes[2::3] << 20


@_quiet
def gist_fp10_decoder(x: HostArray, *, to: Dtype, shape: Shape) -> HostArray:
    codes = x.reshape(-1, 1) >> np.arange(0, 30, 10, dtype=np.uint32) & 0x3FF
    return _shaped(np.take(converted(_VALUE_OF_FP10, to), codes.ravel()), shape)


# ---- 4-bit indices -------------------------------------------------------------------------------


def gist_index4_encoder(x: HostArray, *, check: bool) -> HostArray:  # noqa: ARG001
    codes = padded(x.ravel(), 2).astype(np.uint8) & 15
    return codes[::2] | codes[1::2] << 4


def gist_index4_decoder(x: HostArray, *, to: Dtype, shape: Shape) -> HostArray:
    return _shaped(np.stack((x.ravel() & 15, x.ravel() >> 4), 1).ravel(), shape).astype(to)


# ---- scaled 8-bit floats -------------------------------------------------------------------------


def gist_block_e4m3_encoder(x: HostArray) -> HostArray:
    return _block_encoder(x, _E4M3_OF_ODD, 464.0)


def gist_block_e5m2_encoder(x: HostArray) -> HostArray:
    return _block_encoder(x, _E5M2_OF_ODD, np.nextafter(61440.0, 0))


def gist_block_e4m3_decoder(x: HostArray, *, to: Dtype, shape: Shape) -> HostArray:
    return _block_decoder(x, _VALUE_OF_E4M3, to, shape)


def gist_block_e5m2_decoder(x: HostArray, *, to: Dtype, shape: Shape) -> HostArray:
    return _block_decoder(x, _VALUE_OF_E5M2, to, shape)


@_quiet
def _block_encoder(x: HostArray, code_of_odd: HostArray, largest: float) -> HostArray:
    """`largest`: what just does not round beyond the format."""
    blocks = padded(wide(x.ravel()), BLOCK).reshape(-1, BLOCK)
    scales = _scales(blocks, largest)
    codes = np.take(code_of_odd, odd_bits(np.ldexp(blocks, -scales[:, None])))
    tiles = -(-x.size // TILE)
    y = np.empty((tiles, SCALES_NBYTES + TILE), np.uint8)
    y[:, :SCALES_NBYTES] = (
        padded(scales.astype(INT16), TILE // BLOCK).view(np.uint8).reshape(tiles, -1)
    )
    y[:, SCALES_NBYTES:] = padded(codes.ravel(), TILE).reshape(tiles, -1)
    return y.ravel()[: x.size + SCALES_NBYTES * tiles]


def _scales(blocks: HostArray, largest: float) -> HostArray:
    """The smallest s of each block with max |x| / 2^s <= largest, of its finite elements."""
    size = np.abs(blocks)
    most, exponent = np.frexp(np.max(size, 1, where=np.isfinite(size), initial=0))
    fraction, of_largest = np.frexp(largest)
    return np.where(most == 0, 0, exponent - of_largest + (most > fraction))


@_quiet
def _block_decoder(x: HostArray, values: HostArray, to: Dtype, shape: Shape) -> HostArray:
    tiles = padded(x.ravel(), SCALES_NBYTES + TILE).reshape(-1, SCALES_NBYTES + TILE)
    scales = np.ascontiguousarray(tiles[:, :SCALES_NBYTES]).view(INT16).astype(np.int32)
    codes = tiles[:, SCALES_NBYTES:]
    unscaled = np.take(values.astype(computed_in(to)), codes).reshape(-1, TILE // BLOCK, BLOCK)
    decoded = np.ldexp(unscaled, scales[:, :, None]).astype(to).reshape(codes.shape)
    put_nan(decoded, np.take(np.isnan(values), codes), codes > 0x7F)
    return _shaped(decoded.ravel()[: x.size - SCALES_NBYTES * len(tiles)], shape)
