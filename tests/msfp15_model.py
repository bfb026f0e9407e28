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
        return _model_nonfinite(tile, keep_sign) if keep_nonfinite else [0] * 8
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


def _model_nonfinite(tile: list[float], keep_sign: bool) -> list[int]:
    """Codes beside infinities and NaN: five bits of magnitude, the exponent F in bit 5."""
    sizes = [abs(x) for x in tile if model_exponent(x) < 255]
    largest = max((x for x in sizes if keep_sign or x >= 2.0**-126), default=0.0)
    exponent = model_exponent(largest)
    most = Fraction(59, 2) if exponent else 27  # from which on M would be 30, or near it
    raised = Fraction(largest) / Fraction(2) ** (exponent - 131) >= most
    exponent += raised
    step = Fraction(2) ** (exponent - 131)
    codes = []
    for j, x in enumerate(tile):
        code = 0
        if math.isnan(x):
            code = 31 | (0x40 if math.copysign(1, x) < 0 else 0)
        elif model_exponent(x) == 255:
            code = 30 | (0x40 if x < 0 else 0)
        elif x != 0 and (keep_sign or model_exponent(x) > 0):
            rounded_half_up = math.floor(abs(Fraction(x)) / step + Fraction(1, 2))
            most = 15 if raised else 29
            code = max(min(rounded_half_up, most), 1 if keep_sign else 0)
            code |= 0x40 if x < 0 else 0
        codes.append(0x80 | (exponent >> j & 1) << 5 | code)
    return codes


def model_decode(codes: list[int], keep_nonfinite: bool = False) -> list[float]:
    shared = sum((code >> 7) << j for j, code in enumerate(codes))
    if keep_nonfinite and codes == [0x80] * 8:  # older encoders'
        return [NAN] * 8
    if keep_nonfinite and shared == 255:
        exponent = sum((code >> 5 & 1) << j for j, code in enumerate(codes))
        step = Fraction(2) ** (exponent - 131)
        sizes = [NAN if c & 31 == 31 else INF if c & 31 == 30 else float((c & 31) * step)
                 for c in codes]  # fmt: skip
        return [-s if c & 0x40 and s else s for s, c in zip(sizes, codes, strict=True)]
    values = []
    for code in codes:
        size = (code & 0x3F) * Fraction(2) ** (shared - 132)
        value = INF if size >= 2**128 else float(size)
        values.append(-value if code & 0x40 and size else value)
    return values
