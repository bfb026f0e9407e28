# SPDX-License-Identifier: MIT
"""Gist codecs of numbers in few bits, in NumPy. Formulas: the classes in `operators.py`."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ...dtypes import BFLOAT16, FLOAT16, FLOAT32, Dtype, HostArray
from ...rules.widening import computed_in, convert, odd_bits, pad_tiles, put_nan, quiet, wide
from .facts import BLOCK, INT8_BLOCK, INT8_LEAST_SCALE, TILE

Shape = tuple[int, ...] | None

INT16 = np.dtype(np.int16)
# Codes of what is not finite, in blocks that the scale marks: E4M3's by INFINITY_MARK, integers' by
# a negative scale.
INFINITY_MARK, INFINITY_OF_E4M3 = 0x4000, 0x7E
INFINITY_OF_INT8, NAN_OF_INT8 = 127, -128


def _fp10(x: HostArray) -> HostArray:
    """Return FP10 codes, uint16, of float32: 1 sign, 5 exponent, 4 fraction bits, ties to even.

    A subnormal's code is the last places of |x| + 32, whose unit is 2^-18, as that of the code.
    """
    bits = x.view(np.uint32)
    size = bits & 0x7FFFFFFF
    subnormal = (size.view(FLOAT32) + FLOAT32.type(32)).view(np.uint32) - 0x42000000
    # 19 fraction bits go. 1792: the biases' difference, 127 - 15, above four fraction bits.
    # 0x38800000 is 2^-14, the smallest normal number; 0x7F800000 infinity.
    rounded = (size + 0x3FFFF + (size >> 19 & 1)) >> 19
    code = np.where(size < 0x38800000, subnormal, np.minimum(rounded - 1792, 0x1F0))
    code[size > 0x7F800000] = 0x1F8
    return np.asarray(code | bits >> 22 & 0x200).astype(np.uint16)


# All bfloat16: odd_bits rounds any number to one of them "to odd", whose code is the number's.
_ODD = np.arange(2**16, dtype=np.uint16).view(BFLOAT16)
with np.errstate(all="ignore"):  # look-ups take a fraction of the time of conversions
    _FP10_OF_ODD = _fp10(_ODD.astype(FLOAT32))
    _E4M3_OF_ODD = _ODD.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    _E5M2_OF_ODD = _ODD.astype(ml_dtypes.float8_e5m2).view(np.uint8)
_VALUE_OF_FP10 = (np.arange(2**10, dtype=np.uint16) << 6).view(FLOAT16)  # codes are upper bits
_CODES = np.arange(2**8, dtype=np.uint8)
_VALUE_OF_E4M3 = _CODES.view(ml_dtypes.float8_e4m3fn)
_VALUE_OF_E5M2 = _CODES.view(ml_dtypes.float8_e5m2)


def _first_elements(flat: HostArray, shape: Shape) -> HostArray:
    """Return the first elements of `flat` in `shape`, all of them if that is None."""
    return flat if shape is None else flat[: int(np.prod(shape, dtype=np.int64))].reshape(shape)


# ---- FP10 ----------------------------------------------------------------------------------------


@quiet
def gist_fp10_encoder(x: HostArray) -> HostArray:
    """Return FP10 codes, three in a uint32, the first in the lowest bits."""
    codes = np.take(_FP10_OF_ODD, pad_tiles(odd_bits(x.ravel()), 3)).astype(np.uint32)
    return codes[::3] | codes[1::3] << 10 | codes[2::3] << 20


@quiet
def gist_fp10_decoder(x: HostArray, *, to: Dtype, shape: Shape) -> HostArray:
    """Return numbers of the three FP10 codes in each uint32, the lowest bits first.

    to, shape: of the result; shape None: flat.
    """
    codes = x.reshape(-1, 1) >> np.arange(0, 30, 10, dtype=np.uint32) & 0x3FF
    return _first_elements(np.take(convert(_VALUE_OF_FP10, to), codes.ravel()), shape)


# ---- 4-bit indices -------------------------------------------------------------------------------


def gist_index4_encoder(x: HostArray, *, check: bool) -> HostArray:  # noqa: ARG001
    """Return the lowest four bits of each element, two in a byte, the first in the lower half."""
    codes = pad_tiles(x.ravel(), 2).astype(np.uint8) & 15
    return codes[::2] | codes[1::2] << 4


def gist_index4_decoder(x: HostArray, *, to: Dtype, shape: Shape) -> HostArray:
    """Return the two 4-bit numbers of each byte, the lower half first."""
    return _first_elements(np.stack((x.ravel() & 15, x.ravel() >> 4), 1).ravel(), shape).astype(to)


# ---- scaled 8-bit floats -------------------------------------------------------------------------


@quiet
def gist_block_e4m3_encoder(x: HostArray) -> HostArray:
    """Return tiles of uint8: for each block of 128 elements s, and E4M3 codes of x / 2^s.

    E4M3 has no infinity: the scale of a block with one is larger by one, so that no finite element
    has the largest code, and marked by bit 14, which is otherwise as bit 15.
    """
    blocks, scales = _blocks_and_scales(x, 464.0)  # rounds to 448, ties to even
    infinite = np.isinf(blocks)
    marked = infinite.any(1)
    scales = (scales + marked).astype(INT16)
    codes = np.take(_E4M3_OF_ODD, odd_bits(np.ldexp(blocks, -scales[:, None])))
    codes[infinite] = np.where(blocks[infinite] > 0, INFINITY_OF_E4M3, INFINITY_OF_E4M3 | 0x80)
    return _to_tiles(np.where(marked, scales ^ INFINITY_MARK, scales), codes, x.size)


@quiet
def gist_block_e5m2_encoder(x: HostArray) -> HostArray:
    """Return tiles of uint8: for each block of 128 elements s, and E5M2 codes of x / 2^s."""
    # Below 61440 numbers round to 57344; that tie rounds to infinity.
    blocks, scales = _blocks_and_scales(x, np.nextafter(61440.0, 0))
    codes = np.take(_E5M2_OF_ODD, odd_bits(np.ldexp(blocks, -scales[:, None])))
    return _to_tiles(scales.astype(INT16), codes, x.size)


def gist_block_e4m3_decoder(x: HostArray, *, to: Dtype, shape: Shape) -> HostArray:
    """Return 2^s times the value of each E4M3 code; 0x7E is infinity in marked blocks.

    x: bytes of gist_block_e4m3_encoder. to, shape: of the result; shape None: flat.
    """
    scales, codes, n = _from_tiles(x, BLOCK, INT16)
    # In a marked scale bit 14 is unlike bit 15, the sign.
    marked = (scales ^ scales >> 1) & INFINITY_MARK != 0
    scales = np.where(marked, scales ^ INFINITY_MARK, scales)
    decoded = _decoded_blocks(scales, codes, _VALUE_OF_E4M3, to)
    infinite = (codes & 0x7F == INFINITY_OF_E4M3) & marked[:, :, None]
    decoded[infinite] = np.where(codes[infinite] > 0x7F, -np.inf, np.inf)
    return _first_elements(decoded.ravel()[:n], shape)


def gist_block_e5m2_decoder(x: HostArray, *, to: Dtype, shape: Shape) -> HostArray:
    """Return 2^s times the value of each E5M2 code in x, in dtype `to` and `shape` (None: flat)."""
    scales, codes, n = _from_tiles(x, BLOCK, INT16)
    return _first_elements(_decoded_blocks(scales, codes, _VALUE_OF_E5M2, to).ravel()[:n], shape)


def _blocks_and_scales(x: HostArray, largest: float) -> tuple[HostArray, HostArray]:
    """Return x as float32 or float64 (blocks, 128), and the s of each block, as _scales does."""
    blocks = pad_tiles(wide(x.ravel()), BLOCK).reshape(-1, BLOCK)
    return blocks, _scales(blocks, largest)


def _to_tiles(scales: HostArray, codes: HostArray, n: int) -> HostArray:
    """Return the bytes of tiles, each its scales and then its codes, without padding behind n.

    scales: (blocks,). codes: one byte each, (blocks, elements of a block). n: elements in all.
    """
    codes = codes.view(np.uint8)
    scales = pad_tiles(scales, TILE // codes.shape[1]).view(np.uint8).reshape(-(-n // TILE), -1)
    tiles = pad_tiles(codes.ravel(), TILE).reshape(-1, TILE)
    return np.hstack((scales, tiles)).ravel()[: n + scales.size]


def _from_tiles(x: HostArray, block: int, scale: Dtype) -> tuple[HostArray, HostArray, int]:
    """Return scales (tiles, blocks), codes (tiles, blocks, block), and how many are no padding.

    block: elements of a block. scale: dtype of a scale.
    """
    nbytes = TILE // block * scale.itemsize
    tiles = pad_tiles(x.ravel(), nbytes + TILE).reshape(-1, nbytes + TILE)
    scales = np.ascontiguousarray(tiles[:, :nbytes]).view(scale)
    return scales, tiles[:, nbytes:].reshape(len(tiles), -1, block), x.size - nbytes * len(tiles)


def _scales(blocks: HostArray, largest: float) -> HostArray:
    """Return the smallest s of each block with max |x| / 2^s <= largest, of its finite elements.

    With max = m 2^e and largest = f 2^g, m and f in [0.5, 1), that is e - g, or one more if m > f.
    """
    size = np.abs(blocks)
    most, exponent = np.frexp(np.max(size, 1, where=np.isfinite(size), initial=0))
    fraction, of_largest = np.frexp(largest)
    return np.where(most == 0, 0, exponent - of_largest + (most > fraction))


@quiet
def _decoded_blocks(scales: HostArray, codes: HostArray, values: HostArray, to: Dtype) -> HostArray:
    """Return 2^scales * values[codes] in dtype `to`, (tiles, blocks, elements).

    scales: (tiles, blocks). codes: bytes, (tiles, blocks, elements). values: of the 256 codes.
    """
    unscaled = np.take(values.astype(computed_in(to)), codes)
    decoded = np.ldexp(unscaled, scales.astype(np.int32)[:, :, None]).astype(to)
    return put_nan(decoded, np.take(np.isnan(values), codes), codes > 0x7F)


# ---- scaled integers -----------------------------------------------------------------------------


@quiet
def gist_int8_encoder(x: HostArray, *, keep_sign: bool) -> HostArray:
    """Return tiles of uint8: for each block a bfloat16 s = largest / 127, and int8 round(x / s).

    keep_sign: of numbers but 0 no code is 0.
    """
    numbers = pad_tiles(x.ravel(), TILE).reshape(-1, INT8_BLOCK)
    narrow = numbers.astype(FLOAT32)
    largest = np.abs(narrow).max(1)
    codes, scales = _integers(numbers, narrow, largest, 127, keep_sign)
    lost = np.flatnonzero(~np.isfinite(largest))
    if lost.size:
        codes[lost], scales[lost] = _integers_of_nonfinite(numbers[lost], narrow[lost], keep_sign)
    return _to_tiles(scales, codes, x.size)


def _integers_of_nonfinite(
    numbers: HostArray, narrow: HostArray, keep_sign: bool
) -> tuple[HostArray, HostArray]:
    """Return codes and scales of blocks with infinities or NaN, whose finite codes are below 127.

    numbers: (blocks, elements). narrow: the same in float32. keep_sign: no number but 0 has code 0.
    """
    size = np.abs(narrow)
    is_finite = np.isfinite(size)
    largest = np.max(size, 1, where=is_finite, initial=0)
    finite = np.where(is_finite, narrow, 0)
    codes, scales = _integers(np.where(is_finite, numbers, 0), finite, largest, 126, keep_sign)
    infinity = np.where(narrow > 0, INFINITY_OF_INT8, -INFINITY_OF_INT8)
    codes = np.where(is_finite, codes, np.where(np.isnan(narrow), NAN_OF_INT8, infinity))
    return codes, -scales


def _integers(
    numbers: HostArray, narrow: HostArray, largest: HostArray, most: int, keep_sign: bool
) -> tuple[HostArray, HostArray]:
    """Return int8 codes (blocks, elements), from -most to most, and bfloat16 scales (blocks,).

    numbers: (blocks, elements). narrow: the same in float32. largest: |number| of each block.
    keep_sign: no number but 0 has code 0.
    """
    scales = largest * FLOAT32.type(1 / most)
    scales = np.maximum(scales, FLOAT32.type(INT8_LEAST_SCALE)).astype(BFLOAT16)
    codes = np.rint(narrow * (1 / scales.astype(FLOAT32))[:, None])
    codes = np.clip(codes, -most, most, out=codes).astype(np.int8)
    if keep_sign:
        lost = (codes == 0) & (numbers != 0)
        codes[lost] = np.where(np.signbit(numbers[lost]), -1, 1)
    return codes, scales


@quiet
def gist_int8_decoder(x: HostArray, *, to: Dtype, shape: Shape) -> HostArray:
    """Return code * |scale|; a negative scale marks a block with codes of infinity and NaN.

    x: bytes of gist_int8_encoder. to, shape: of the result; shape None: flat.
    """
    scales, codes, n = _from_tiles(x, INT8_BLOCK, BFLOAT16)
    # A scale below 2^-126 counts as 0.
    is_normal = scales.view(np.uint16) & 0x7F80 != 0
    factors = np.abs(np.where(is_normal, scales.astype(FLOAT32), FLOAT32.type(0)))
    codes = codes.view(np.int8)
    decoded = codes.astype(FLOAT32) * factors[:, :, None]
    lost = np.nonzero(np.signbit(scales))
    if lost[0].size:
        of_lost, in_lost = codes[lost], decoded[lost]
        in_lost[np.abs(of_lost) == INFINITY_OF_INT8] = np.inf
        in_lost[of_lost == -INFINITY_OF_INT8] = -np.inf
        in_lost[of_lost == NAN_OF_INT8] = np.nan
        decoded[lost] = in_lost
    return _first_elements(
        put_nan(decoded.astype(to), np.isnan(decoded), np.zeros(decoded.shape, bool)).ravel()[:n],
        shape,
    )
