# SPDX-License-Identifier: MIT
"""Moments of Adam in codes of 8 or 4 bits, as cuda_src/adam/codes.cuh has them, bit for bit.

Second moments are floats of few bits, relative to the largest in their block of 128. First moments
are relative to the root of the second moment of the same element, to the power of two below it: no
element loses its first moment beside a larger one. Rounding is stochastic, by a hash of element and
step (`noise`): a moment that changes by less than a code's step in each step of training follows
its mean all the same.

8 bits, of n elements: n bytes of first moments, each a sign, 4 bits of the exponent and 3 of the
fraction; n bytes of second moments, each 5 bits of the exponent and 3 of the fraction, and a byte
for each block behind them, the exponent of its largest.

4 bits: ceil(n / 2) bytes of first moments, the sign and a number from 0 to 7, and for each block 2
bytes, the bfloat16 that they are multiples of; ceil(n / 2) bytes of second moments, and for each
block 2 bytes: the exponent of its largest, and the bits of the fraction, as many of 2 as leave
room for its least. Of two elements in a byte the first is in the lower bits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...dtypes import HostArray
from .facts import (
    CODED_BLOCK,
    FIRST_BITS,
    LEAST_EXPONENT,
    LEVELS,
    MOST_BITS,
    OCTAVES,
    ROOM,
    SECOND_BITS,
)

_FRACTION, _BIAS = 23, 127  # of float32
_INFINITE, _NAN = 0x7F80_0000, 0x7FC0_0000
_LARGEST = np.finfo(np.float32).max
_TOP = (1 << (FIRST_BITS + 4)) - 1  # largest code of a first moment, without its sign


class Codes(NamedTuple):
    """The codes of an array's first and second moments, flat uint8."""

    first: HostArray
    second: HostArray


def coded_sizes(n: int, bits: int) -> tuple[int, int]:
    """Return the bytes of the codes of n first moments, and of n second ones; bits: 8 or 4."""
    blocks = -(-n // CODED_BLOCK)
    if bits == 8:
        return n, n + blocks
    return -(-n // 2) + 2 * blocks, -(-n // 2) + 2 * blocks


@np.errstate(all="ignore")
def encode(m: HostArray, v: HostArray, bits: int, step: int = 0) -> Codes:
    """Return the codes of first moments m and second moments v (float32) of `bits` 8 or 4.

    step: of the training, from which with the place of each element its rounding follows.
    """
    m, v = (np.asarray(x, np.float32).reshape(-1) for x in (m, v))
    noises = noise(m.size, step)  # first moments take its upper bits, second ones its lower
    if bits == 8:
        second = _encode_second(v, noises)
        return Codes(_encode_first(m, _exponents(_decode_second(second, v.size)), noises), second)
    second = _encode_few_second(v, noises)
    roots = _roots(_exponents(_decode_few_second(second, v.size)))
    return Codes(_encode_few_first(m, roots, noises), second)


@np.errstate(all="ignore")
def decode(codes: tuple[HostArray, HostArray], n: int, bits: int) -> tuple[HostArray, HostArray]:
    """Return n first and n second moments in float32 from their codes of `bits` 8 or 4."""
    first, second = codes
    if bits == 8:
        v = _decode_second(second, n)
        return _decode_first(first, _exponents(v)), v
    v = _decode_few_second(second, n)
    return _decode_few_first(first, _roots(_exponents(v)), n), v


def noise(n: int, step: int) -> HostArray:
    """Return 32 pseudorandom bits for each of n elements: a hash of its index and the step."""
    x = np.arange(n, dtype=np.uint32) * np.uint32(0x9E3779B1)
    x += np.uint32(step * 0x85EBCA77 & 0xFFFF_FFFF)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(16))


# ---- 8 bits --------------------------------------------------------------------------------------


def _encode_second(v: HostArray, noises: HostArray) -> HostArray:
    """Return the codes of v, then the exponent of each block's largest, as bytes.

    A code is exponent and fraction bits as one number, less the base of its block (`_base`); at
    least 1 where v is not 0, as a divisor of 0 would make the update huge. noises: 32 random bits
    for each element.
    """
    upper = _uppers(v, SECOND_BITS, noises)
    exponents = _blocks(upper).max(axis=1, initial=0) >> SECOND_BITS
    codes = np.maximum(upper - _each(_base(exponents, SECOND_BITS, 255), v.size), v != 0)
    return np.concatenate((codes, exponents)).astype(np.uint8)


def _decode_second(second: HostArray, n: int) -> HostArray:
    """Return the n numbers that `_encode_second` made these bytes of."""
    codes, exponents = second[:n].astype(np.int64), second[n:].astype(np.int64)
    return _numbers(codes, _each(_base(exponents, SECOND_BITS, 255), n), SECOND_BITS)


def _encode_first(m: HostArray, exponents: HostArray, noises: HostArray) -> HostArray:
    """Return the codes of m, a byte each: sign, 4 bits of exponent, 3 of fraction.

    exponents: of the second moments as decoded. noises: 32 random bits for each element. A moment
    below the least power of two of its codes becomes that or 0, at random with its own value as the
    mean.
    """
    least = _least(exponents)
    bits = _bits(m)
    draws = noises >> np.uint32(9)  # 23 bits: as many as the fraction, of which 20 are cut off
    upper = (bits + (draws >> np.uint32(FIRST_BITS))) >> (_FRACTION - FIRST_BITS)
    codes = np.minimum(upper - _first_base(least), _TOP)
    shares = np.abs(m) * _power(_FRACTION + 2 * _BIAS - least)  # 2^23 |m| over the least power
    is_less = bits < least << _FRACTION
    below = np.where(is_less, shares, 0).astype(np.int64) > draws
    codes = np.where(is_less, below, codes)
    return codes.astype(np.uint8) | (np.signbit(m).astype(np.uint8) << np.uint8(7))


def _decode_first(first: HostArray, exponents: HostArray) -> HostArray:
    """Return the numbers of these codes; exponents: of the second moments."""
    each = first.astype(np.int64)
    x = _numbers(each & _TOP, _first_base(_least(exponents)), FIRST_BITS)
    return np.where(each > _TOP, -x, x)


def _least(exponents: HostArray) -> HostArray:
    """Return the exponent of the least power of two in codes of first moments.

    Codes have OCTAVES powers of two, the first ROOM of them above the root of the second moment,
    whose exponent is `exponents`. All exponents have float32's bias.
    """
    return np.asarray((exponents + _BIAS >> 1) + ROOM + 1 - OCTAVES)


def _first_base(least: HostArray) -> HostArray:
    """Return the base of codes, of which 1 is the power of two with exponent `least`."""
    return np.asarray((least << FIRST_BITS) - 1)


# ---- 4 bits --------------------------------------------------------------------------------------


def _encode_few_second(v: HostArray, noises: HostArray) -> HostArray:
    """Return codes of 4 bits of v, two a byte, then exponent and fraction bits of each block.

    A block has the most bits of the fraction, MOST_BITS to 0, with which no element that is not 0
    is below code 1. A code is exponent and fraction bits as one number, less the base of its block.
    noises: 32 random bits for each element.
    """
    n_blocks = -(-v.size // CODED_BLOCK)
    codes, exponents = np.zeros(v.size, np.int64), np.zeros(n_blocks, np.int64)
    kinds = np.full(n_blocks, -1)
    for fraction in range(MOST_BITS, -1, -1):
        upper = _uppers(v, fraction, noises)
        own = _blocks(upper).max(axis=1, initial=0) >> fraction
        each = upper - _each(_base(own, fraction, 15), v.size)
        fits = (_blocks((each < 1) & (v != 0)).max(axis=1, initial=0) == 0) | (fraction == 0)
        chosen = fits & (kinds < 0)
        codes = np.where(_each(chosen, v.size), np.maximum(each, v != 0), codes)
        exponents, kinds = np.where(chosen, own, exponents), np.where(chosen, fraction, kinds)
    scales = np.stack((exponents, kinds), axis=1).astype(np.uint8)
    return np.concatenate((_packed(codes), scales.reshape(-1)))


def _decode_few_second(second: HostArray, n: int) -> HostArray:
    """Return the n numbers that `_encode_few_second` made these bytes of."""
    codes, scales = _unpacked(second, n)
    exponents, kinds = scales[:, 0].astype(np.int64), np.minimum(scales[:, 1], MOST_BITS)
    kinds = kinds.astype(np.int64)
    bases = np.maximum((exponents << kinds) + (1 << kinds) - 16, 0)  # `_base` of several kinds
    return _numbers(codes, _each(bases, n), _each(kinds, n))


def _encode_few_first(m: HostArray, roots: HostArray, noises: HostArray) -> HostArray:
    """Return codes of 4 bits of m, two a byte, then for each block a bfloat16, `part`.

    A code is a sign and a level from 0 to 7: |m| / root = level * part, rounded at random. part is
    a seventh of the block's largest ratio, cut to bfloat16. roots: exponents of the powers of two
    at or below the roots of the second moments. noises: 32 random bits for each element.
    """
    ratios = np.fmin(np.abs(m) * _power(2 * _BIAS - roots), _LARGEST)
    largest = _blocks(ratios).max(axis=1, initial=0)
    parts = (largest / np.float32(LEVELS)).view(np.uint32) & np.uint32(0xFFFF_0000)  # bfloat16
    parts[largest < np.float32(2.0**LEAST_EXPONENT)] = 0
    part = _each(parts.view(np.float32), m.size)
    shares = (noises >> np.uint32(12)).astype(np.float32) * np.float32(2.0**-20)  # in [0, 1)
    levels = np.minimum(np.where(part > 0, ratios / part, 0) + shares, LEVELS)
    codes = levels.astype(np.int64) | np.signbit(m).astype(np.int64) << 3
    return np.concatenate(
        (_packed(codes), (parts >> np.uint32(16)).astype(np.uint16).view(np.uint8))
    )


def _decode_few_first(first: HostArray, roots: HostArray, n: int) -> HostArray:
    """Return the n first moments of these codes.

    roots: exponents of the powers of two at or below the roots of the second moments.
    """
    codes, scales = _unpacked(first, n)
    parts = np.ascontiguousarray(scales).view(np.uint16).reshape(-1).astype(np.uint32)
    part = (parts << np.uint32(16)).view(np.float32)
    x = (codes & LEVELS).astype(np.float32) * _each(part, n) * _power(roots)
    return np.where(codes > LEVELS, -x, x)


def _roots(exponents: HostArray) -> HostArray:
    """Return the exponents of the powers of two at or below the roots of numbers of these."""
    return np.asarray(exponents + _BIAS >> 1)


def _packed(codes: HostArray) -> HostArray:
    """Return bytes of two codes each, the first in the lower 4 bits."""
    pairs = np.pad(codes, (0, codes.size % 2)).reshape(-1, 2).astype(np.uint8)
    return pairs[:, 0] | pairs[:, 1] << np.uint8(4)


def _unpacked(bytes_: HostArray, n: int) -> tuple[HostArray, HostArray]:
    """Return (n codes of 4 bits, the two bytes of each block) from bytes laid out in that order."""
    end = -(-n // 2)
    pairs = np.stack((bytes_[:end] & np.uint8(15), bytes_[:end] >> np.uint8(4)), axis=1)
    return pairs.reshape(-1)[:n].astype(np.int64), bytes_[end:].reshape(-1, 2)


# ---- floats --------------------------------------------------------------------------------------


def _bits(x: HostArray) -> HostArray:
    """Return the bits of float32 |x|."""
    return np.asarray(x.view(np.uint32) & np.uint32(0x7FFF_FFFF)).astype(np.int64)


def _exponents(x: HostArray) -> HostArray:
    """Return the exponents of float32 numbers >= 0, with float32's bias."""
    return np.asarray(x.view(np.uint32) >> np.uint32(_FRACTION)).astype(np.int64)


def _power(exponents: HostArray) -> HostArray:
    """Return the powers of two of these exponents, which have float32's bias."""
    return np.asarray(exponents << _FRACTION).astype(np.uint32).view(np.float32)


def _uppers(x: HostArray, fraction: int, noises: HostArray) -> HostArray:
    """Return exponent and the first `fraction` bits of the fraction of |x| as one number.

    noises: 32 random bits for each element, which are added to the bits that are cut off: so it is
    rounded up at random. NaN and infinity stay.
    """
    bits, shift = _bits(x), _FRACTION - fraction
    upper = np.where(bits == 0, 0, bits + (noises & np.uint32(2**shift - 1))) >> shift
    special = np.where(bits > _INFINITE, _NAN, _INFINITE) >> shift
    return np.where(bits >= _INFINITE, special, upper)


def _numbers(codes: HostArray, bases: HostArray, fraction: int | HostArray) -> HostArray:
    """Return the float32 numbers whose exponent and `fraction` bits are code + base; code 0: 0."""
    bits = np.where(codes == 0, 0, codes + bases) << (_FRACTION - fraction)
    return bits.astype(np.uint32).view(np.float32)


def _base(exponents: HostArray, fraction: int, top: int) -> HostArray:
    """Return what each block's codes are counted from, at least 0.

    `top` is then the code of the largest number with the block's exponent: all bits of its
    `fraction` set.
    """
    return np.asarray(np.maximum((exponents << fraction) + (1 << fraction) - 1 - top, 0))


def _each(of_blocks: HostArray, n: int) -> HostArray:
    """Return the number of its block for each of n elements."""
    return np.repeat(of_blocks, CODED_BLOCK)[:n]


def _blocks(flat: HostArray) -> HostArray:
    """Return (blocks, CODED_BLOCK), with zeros behind the last element."""
    missing = -flat.size % CODED_BLOCK
    return np.pad(flat, (0, missing)).reshape(-1, CODED_BLOCK)


# ---- codes of older versions ---------------------------------------------------------------------


def decode_old(codes: tuple[HostArray, HostArray], n: int) -> tuple[HostArray, HostArray]:
    """Return n first and n second moments from codes both relative to the largest in their block.

    Each array of n codes is followed by a byte for each block, as that of second moments is now.
    Both had 4 bits of the fraction; first moments had a sign and 3 bits of the exponent.
    """
    numbers = []
    for bytes_, top in zip(codes, (127, 255), strict=True):
        each, exponents = bytes_[:n].astype(np.int64), bytes_[n:].astype(np.int64)
        x = _numbers(each & top, _each(_base(exponents, 4, top), n), 4)
        numbers.append(np.where(each > top, -x, x))
    return numbers[0], numbers[1]


def old_size(n: int) -> int:
    """Return the bytes of n such codes: n and one for each block."""
    return n - (-n // CODED_BLOCK)
