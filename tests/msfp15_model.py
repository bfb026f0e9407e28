# SPDX-License-Identifier: MIT
"""MSFP15 by its formula, one element at a time, in whole numbers and fractions."""

from __future__ import annotations

import math
from fractions import Fraction

NAN, INF = math.nan, math.inf


def model_exponent(x: float) -> int:
    """The biased float32 exponent of |x| cut to float32's range: 0 below 2^-126, 255 from 2^128."""
    if not math.isfinite(x) or abs(x) >= 2.0**128:
        return 255
    return max(math.frexp(x)[1] + 126, 0) if abs(x) >= 2.0**-126 else 0


def model_encode(
    tile: list[float], keep_nonfinite: bool = False, keep_sign: bool = False
) -> list[int]:
    shared = max(map(model_exponent, tile))
    if shared == 255:
        return [0x80 if keep_nonfinite else 0] * 8
    codes = []
    for j, x in enumerate(tile):
        quantum = Fraction(2) ** (shared - 132)
        element = 0
        if model_exponent(x) > 0 or (keep_sign and x != 0):
            rounded_half_up = math.floor(abs(Fraction(x)) / quantum + Fraction(1, 2))
            least = 1 if keep_sign else 0
            element = (0x40 if x < 0 else 0) | min(max(rounded_half_up, least), 63)
        codes.append((shared >> j & 1) << 7 | element)
    return codes


def model_decode(codes: list[int], keep_nonfinite: bool = False) -> list[float]:
    shared = sum((code >> 7) << j for j, code in enumerate(codes))
    if keep_nonfinite and shared == 255:
        return [NAN] * 8
    values = []
    for code in codes:
        size = (code & 0x3F) * Fraction(2) ** (shared - 132)
        value = INF if size >= 2**128 else float(size)
        values.append(-value if code & 0x40 and size else value)
    return values
