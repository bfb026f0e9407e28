# SPDX-License-Identifier: MIT
"""Poisoned outputs and one comparison that NaN cannot fool, with one tolerance table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..dtypes import HostArray, dtype_name, element_type
from ..samples import ROOT_TOLERANCE

# |actual - expected| <= tolerance * (1 + |expected|), by the dtype that is computed in.
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}

# Tolerance of a sum of n products in TF32: this times sqrt(n). Other dtypes: `ROOT_TOLERANCE`.
TF32_TOLERANCE = 2e-3

# |actual - expected| <= SUM_TOLERANCE * (sum of the terms' magnitudes), of sums over rows in
# float32: two stages stay below 2e-8, one chain of 70,000 additions reaches 1.5e-7.
SUM_TOLERANCE = 5e-8

_POISON = 0x7A  # no NaN in any type, far from zero in each, and no bool


def tolerance_of(dtype: DTypeLike, terms: int = 1, tf32: bool = False) -> float:
    """Return the relative tolerance for sums of `terms` products computed in this dtype.

    0 for integers and bool, which are compared bit for bit. tf32: float32 products are in TF32.
    """
    name = dtype_name(dtype)
    by_root = TF32_TOLERANCE if tf32 and name == "float32" else ROOT_TOLERANCE.get(name, 0.0)
    return max(TOLERANCE.get(name, 0.0), by_root * math.sqrt(terms))


def poison(array: Any) -> object:
    """Fill a C-contiguous array with the byte _POISON, so that an unwritten element shows; return
    it."""
    array.reshape(-1).view(np.uint8)[...] = _POISON
    return array


def assert_matches(
    actual: HostArray,
    expected: HostArray,
    tolerance: float | None = None,
    slack: HostArray | float = 0.0,
) -> None:
    """Raise AssertionError, naming the worst element, unless dtype, shape and values match:

        |actual - expected| <= tolerance * (1 + |expected|) + slack

    NaN, and infinities with their sign, must be in the same places. tolerance: None takes that of
    the dtype; 0 asks for equal values (any NaN equals any NaN). slack: a number, or one for each
    element.
    """
    assert actual.dtype == expected.dtype, f"dtype {actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    allowed = tolerance_of(expected.dtype) if tolerance is None else tolerance
    wrong = _excess(actual, expected, allowed, slack)
    if wrong.any():
        worst = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        raise AssertionError(
            f"{np.count_nonzero(wrong)} of {wrong.size} elements differ by more than {allowed} * "
            f"(1 + |expected|); worst at {tuple(map(int, worst))}: "
            f"got {actual[worst]!r}, expected {expected[worst]!r}"
        )


def assert_sums_match(actual: HostArray, expected: HostArray, magnitudes: HostArray) -> None:
    """Raise AssertionError if a float32 sum is off by more than SUM_TOLERANCE * its magnitude.

    magnitudes: for each sum that of its terms' absolute values.
    """
    wrong = np.abs(actual.astype(np.float64) - expected) / magnitudes
    worst = float(wrong.max())
    assert worst <= SUM_TOLERANCE, f"{worst:.2g} of the terms' magnitudes, not {SUM_TOLERANCE}"


def _excess(
    actual: HostArray, expected: HostArray, allowed: float, slack: HostArray | float
) -> HostArray:
    """Return for each element 0 if it matches, else its distance from `expected`, above 0.

    allowed, slack: `tolerance` and `slack` of assert_matches. Integers and bool: 1 for unequal.
    """
    if element_type(expected.dtype).name not in TOLERANCE:
        differ = np.not_equal(_comparable(actual), _comparable(expected))
        axes = tuple(range(expected.ndim, differ.ndim))  # of a complex number's parts
        return np.asarray(differ.any(axis=axes), np.float64)
    with np.errstate(invalid="ignore", over="ignore"):  # NaN and infinities are what we look at
        a, e = actual.astype(np.float64), expected.astype(np.float64)
        same = (a == e) | (np.isnan(a) & np.isnan(e))
        distance = np.abs(a - e)
        close = np.isfinite(e) & (distance <= allowed * (1 + np.abs(e)) + slack)
    return np.where(same | close, 0.0, np.nan_to_num(distance, nan=np.inf) + 1e-300)


def _comparable(array: HostArray) -> HostArray:
    """Return an array whose elements are equal if those of `array` have the same bits.

    bool becomes uint8, as NumPy takes a poisoned one for True; complex numbers become unsigned
    integers, with an axis of 2 behind the others, as NaN differs from itself; others stay.
    """
    if array.dtype == np.bool_:
        return array.view(np.uint8)
    if array.dtype.kind == "c":
        bits = np.dtype(f"u{array.itemsize // 2}")
        return np.ascontiguousarray(array).reshape(*array.shape, 1).view(bits)
    return array
