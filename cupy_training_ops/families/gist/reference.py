# SPDX-License-Identifier: MIT
"""Gist activation codecs in NumPy. Formulas: the classes of the same names in `operators.py`."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ...dtypes import BFLOAT16, FLOAT16, FLOAT32, Dtype, HostArray
from ...facts import NOT_FINITE
from ...rules.widening import convert, odd_bits, pad_tiles, put_nan, quiet, truncated_float32
from .facts import BOX

Shape = tuple[int, ...] | None

E5M2 = ml_dtypes.float8_e5m2
CODE_OF_INFINITY, CODE_OF_NAN = 30, 31  # magnitudes in a box with the exponent NOT_FINITE

with np.errstate(all="ignore"):  # a look-up takes a quarter of the time of ml_dtypes' conversion
    _E5M2_OF_BFLOAT16 = np.arange(2**16, dtype=np.uint16).view(BFLOAT16).astype(E5M2).view(np.uint8)
_VALUE_OF_E5M2 = (np.arange(2**8, dtype=np.uint16) << 8).view(FLOAT16)  # codes are upper bytes
# By the lower 7 bits of an MSFP15 code, sign and magnitude.
_SIGNED_MAGNITUDE = np.concatenate([np.arange(64), 0.0 - np.arange(64)]).astype(FLOAT32)  # no -0


@quiet
def gist_binarize_encoder(x: HostArray) -> HostArray:
    return np.asarray(x > 0)


def gist_binarize_decoder(x: HostArray, *, to: Dtype, shape: Shape) -> HostArray:
    return x.astype(to).reshape(x.shape if shape is None else shape)


@quiet
def gist_pack1_encoder(x: HostArray) -> HostArray:
    return np.packbits(np.ravel(x > 0))


def gist_pack1_decoder(x: HostArray, *, to: Dtype, shape: Shape) -> HostArray:
    """Return the bits of x, the highest of a byte first, as numbers 0 and 1."""
    bits = np.unpackbits(x.ravel())
    return _first_elements(bits, shape, (bits.size,)).astype(to)


@quiet
def gist_pack8_encoder(x: HostArray) -> HostArray:
    """Return E5M2 codes, looked up by bits of x rounded to odd."""
    return np.asarray(np.take(_E5M2_OF_BFLOAT16, odd_bits(x)))


@quiet
def gist_pack8_decoder(x: HostArray, *, to: Dtype, shape: Shape) -> HostArray:
    return _first_elements(np.take(convert(_VALUE_OF_E5M2, to), x), shape, x.shape)


@quiet
def gist_pack16_encoder(x: HostArray) -> HostArray:
    return convert(x, FLOAT16)


@quiet
def gist_pack16_decoder(x: HostArray, *, to: Dtype, shape: Shape) -> HostArray:
    return convert(_first_elements(x, shape, x.shape), to)


@quiet
def gist_pack_msfp15_encoder(x: HostArray, *, keep_nonfinite: bool, keep_sign: bool) -> HostArray:
    """Return MSFP15 codes, a byte an element, in x's shape if it is whole boxes of 8, else flat.

    keep_nonfinite: boxes with infinities or NaN get codes of their own, else zeros. keep_sign: what
    is not 0 has a magnitude of at least 1.
    """
    # MSFP15 only looks at the upper half of a float32: sign, eight bits of exponent, seven more.
    # Code i of a box of eight: bit i of the largest exponent, the sign, six bits of magnitude.
    bits = (pad_tiles(truncated_float32(x.ravel()), BOX).view(np.uint32) >> 16).astype(np.uint16)
    exponent = (bits >> 7).astype(np.uint8)
    shared = _largest_of_tile(exponent)
    magnitude = _magnitude(bits, exponent, shared)
    there = pad_tiles(x.ravel() != 0, BOX) if keep_sign else exponent != 0
    if keep_sign:
        magnitude = np.maximum(magnitude, there)  # 0 would lose the sign
    sign = (bits >> 9).astype(np.uint8) & 0x40
    codes: HostArray = np.unpackbits(shared, bitorder="little") << 7 | (sign | magnitude) * there
    lost = np.flatnonzero(shared == NOT_FINITE)  # boxes with NaN or an infinity
    if lost.size:
        boxes = pad_tiles(x.ravel(), BOX).reshape(-1, BOX)[lost] if keep_nonfinite else None
        codes.reshape(-1, BOX)[lost] = 0 if boxes is None else _encode_nonfinite(boxes, keep_sign)
    return codes.reshape(x.shape if x.size % BOX == 0 else (-1,))


@quiet
def gist_pack_msfp15_decoder(
    x: HostArray, *, to: Dtype, shape: Shape, keep_nonfinite: bool
) -> HostArray:
    """Return sign * magnitude * 2^(exponent - 132), the exponent shared by a box of eight.

    to, shape: of the result; shape None: x's. keep_nonfinite: boxes with exponent 255 have
    infinities or NaN.
    """
    shared = np.packbits(x.ravel() >> 7, bitorder="little")
    step = np.ldexp(np.float32(1), shared.astype(np.int32) - 132)
    # Both factors are exact in float32, so that the product is rounded once.
    values = np.take(_SIGNED_MAGNITUDE, x.ravel() & 0x7F) * np.repeat(step, BOX)
    decoded = values.astype(to, copy=False)
    lost = np.flatnonzero(shared == NOT_FINITE)
    if keep_nonfinite and lost.size:
        boxes = x.reshape(-1, BOX)[lost]
        decoded.reshape(-1, BOX)[lost] = _decode_nonfinite(boxes, decoded.dtype)
    return _first_elements(decoded, shape, x.shape)


def relu_grad_from_bits(dy: HostArray, bits: HostArray) -> HostArray:
    """Return dy where its bit is 1, else 0; the highest bit of a byte is the first."""
    is_set = np.unpackbits(bits, count=dy.size).astype(np.bool_).reshape(dy.shape)
    return np.where(is_set, dy, dy.dtype.type(0))


@quiet
def relu_with_bits(x: HostArray) -> tuple[HostArray, HostArray]:
    """Return max(x, 0), NaN where x is, and bits of the elements that pass."""
    passes = (x > 0) | np.isnan(x)
    return np.where(passes, x, x.dtype.type(0)), np.packbits(np.ravel(passes))


# A box with an infinity or a NaN. Byte j: bit 7, the sign, bit j of F, five bits of M: 31 is NaN,
# 30 infinity, others are (-1)^sign M 2^(F - 131). Older encoders wrote eight bytes 0x80: NaNs.


def _encode_nonfinite(boxes: HostArray, keep_sign: bool) -> HostArray:
    """Return the codes, uint8 (n, 8), of boxes (n, 8) with NaN or infinities.

    keep_sign: finite numbers other than 0 have a magnitude of at least 1.
    """
    # bits: |x| as a float32. of_box is F: M of the largest is its significand / 2^19 (16 to 31);
    # 0x140000 carries into the exponent from M = 29.5 on. 0x800000 is 2^-126, below which numbers
    # count as 0 without keep_sign; 0x7F800000 is infinity.
    bits = truncated_float32(boxes).view(np.uint32) & 0x7FFFFFFF
    if keep_sign:
        bits[(bits == 0) & (boxes != 0)] = 1
    else:
        bits[bits < 0x800000] = 0
    largest = np.max(bits, 1, where=bits < 0x7F800000, initial=0)[:, None]
    of_box = largest + 0x140000 >> 23
    most = np.where(of_box == largest >> 23, CODE_OF_INFINITY - 1, 15)
    exponent = bits >> 23
    significand = bits & 0x7FFFFF | (exponent > 0).astype(np.uint32) << 23
    # To twice M, so that half can be added before the last bit goes.
    shift = 18 + of_box.astype(np.int64) - np.maximum(exponent, 1)
    magnitude = (significand >> np.clip(shift, 0, 31)) + 1 >> 1
    magnitude = np.clip(magnitude, int(keep_sign), most).astype(np.uint8)
    there = bits != 0
    magnitude[bits >= 0x7F800000] = CODE_OF_INFINITY
    magnitude[np.isnan(boxes)] = CODE_OF_NAN
    sign = np.signbit(boxes).astype(np.uint8) << 6
    exponent_bits = (of_box >> np.arange(BOX, dtype=np.uint32) & 1).astype(np.uint8) << 5
    return np.asarray(0x80 | exponent_bits | (sign | magnitude) * there)


def _decode_nonfinite(boxes: HostArray, to: Dtype) -> HostArray:
    """Return the values, (n, 8) of dtype `to`, of boxes (n, 8) that _encode_nonfinite made."""
    of_box = np.packbits(boxes >> 5 & 1, 1, bitorder="little").astype(np.int32)
    magnitude, negative = boxes & 31, boxes & 0x40 != 0
    values = np.ldexp(magnitude.astype(FLOAT32), of_box - 131)
    values[magnitude == CODE_OF_INFINITY] = np.inf
    values = np.where(negative & (magnitude != 0), -values, values)
    all_nan = (boxes == 0x80).all(1, keepdims=True)
    return put_nan(values.astype(to), (magnitude == CODE_OF_NAN) | all_nan, negative)


def _magnitude(bits: HostArray, exponent: HostArray, shared: HostArray) -> HostArray:
    """Return M = (floor(2 |x| / 2^(E - 132)) + 1) // 2, at most 63, for each element.

    bits: the upper 16 of float32. exponent: biased, of each element. shared: E, of each box.
    """
    # 0x40 is the leading 1, six bits of fraction follow; subnormal numbers have seven bits.
    normal = (bits >> 1).astype(np.uint8) & 0x3F | 0x40
    significand = np.where(exponent == 0, bits.astype(np.uint8) & 0x7F, normal)
    truncated = significand >> (np.repeat(shared, BOX) - exponent)
    return np.asarray(np.minimum(truncated + 1, 127) >> 1)


def _largest_of_tile(exponent: HostArray) -> HostArray:
    """Return the maximum of each 8 neighbours, in a sixth of the time of `max(axis=1)`."""
    for _ in range(3):
        exponent = np.maximum(exponent[::2], exponent[1::2])
    return exponent


def _first_elements(flat: HostArray, shape: Shape, default: tuple[int, ...]) -> HostArray:
    """Return the first elements of `flat` in `shape`, or in `default` if that is None."""
    wanted = default if shape is None else shape
    return flat.ravel()[: int(np.prod(wanted, dtype=np.int64))].reshape(wanted)
