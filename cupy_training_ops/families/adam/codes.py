# SPDX-License-Identifier: MIT
"""Moments in bytes, as cuda_src/adam/codes.cuh has them, bit for bit.

An array of n codes is followed by a byte for each block: the exponent of its largest. A code is the
float's exponent and the first bits of its fraction, as one number, less that of the block's least;
0 is 0. First moments have a sign above it. Numbers are rounded up as often as they are nearer to
what is above: a moment that changes by less than a code's step in each step of training follows its
mean all the same.
"""

from __future__ import annotations

import numpy as np

from ...dtypes import HostArray
from .facts import CODED_BLOCK, FIRST_BITS, SECOND_BITS

_FRACTION = 23  # bits of float32's
_INFINITE, _NAN = 0x7F80_0000, 0x7FC0_0000


def coded_nbytes(n: int) -> int:
    """Bytes of n codes and of their blocks' exponents."""
    return n + -(-n // CODED_BLOCK)


def encode(x: HostArray, *, signed: bool, step: int = 0) -> HostArray:
    """The codes of float32 numbers, in the order of memory."""
    flat = np.asarray(x, np.float32).reshape(-1)
    bits = flat.view(np.uint32) & 0x7FFF_FFFF
    fraction, top = _format(signed)
    shift = _FRACTION - fraction
    noises = noise(flat.size, step)  # first moments take its upper bits, second ones its lower
    added = noises >> np.uint32(32 - shift) if signed else noises & (2**shift - 1)
    upper = np.where(bits == 0, 0, bits + added) >> shift
    special = np.where(bits > _INFINITE, _NAN, _INFINITE) >> shift
    upper = np.where(bits >= _INFINITE, special, upper).astype(np.int64)
    exponents = _blocks(upper).max(axis=1, initial=0) >> fraction
    base = _each(_base(exponents, fraction, top), flat.size)
    least = 0 if signed else (flat != 0).astype(np.int64)
    codes = np.maximum(upper - base, least).astype(np.uint8)
    if signed:
        codes |= np.signbit(flat).astype(np.uint8) << 7
    return np.concatenate((codes, exponents.astype(np.uint8)))


def decode(codes: HostArray, n: int, *, signed: bool) -> HostArray:
    """n numbers in float32."""
    fraction, top = _format(signed)
    each, exponents = codes[:n].astype(np.int64), codes[n:].astype(np.int64)
    size = each & 127 if signed else each
    above = _each(_base(exponents, fraction, top), n)
    bits = (np.where(size == 0, 0, size + above) << (_FRACTION - fraction)).astype(np.uint32)
    x: HostArray = bits.view(np.float32)
    return np.where(each & 128, -x, x) if signed else x


def noise(n: int, step: int) -> HostArray:
    """32 bits that look random, of each element and a step."""
    x = np.arange(n, dtype=np.uint32) * np.uint32(0x9E3779B1)
    x += np.uint32(step * 0x85EBCA77 & 0xFFFF_FFFF)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(16))


def _format(signed: bool) -> tuple[int, int]:
    """Bits of the fraction in a code, and the largest code."""
    return (FIRST_BITS, 127) if signed else (SECOND_BITS, 255)


def _base(exponents: HostArray, fraction: int, top: int) -> HostArray:
    """The lower bound of each block's codes."""
    return np.asarray(np.maximum((exponents << fraction) + (1 << fraction) - 1 - top, 0))


def _each(of_blocks: HostArray, n: int) -> HostArray:
    return np.repeat(of_blocks, CODED_BLOCK)[:n]


def _blocks(flat: HostArray) -> HostArray:
    missing = -flat.size % CODED_BLOCK
    return np.pad(flat, (0, missing)).reshape(-1, CODED_BLOCK)
