# SPDX-License-Identifier: MIT
"""Rounding float64 in NumPy to narrower types, once.

ml_dtypes goes from float64 through the nearest float32, which can be a tie that x is not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dtypes import BFLOAT16, FLOAT32, FLOAT64

Array = NDArray[Any]


def cast(x: Any, dtype: np.dtype[Any]) -> Array:
    """x in another dtype, rounded once, to nearest even."""
    return np.asarray(round_to_odd(x) if dtype == BFLOAT16 else x).astype(dtype)


def round_to_odd(x: Any) -> Array:
    """float64 in a float32 that rounds on to fewer bits as it does: inexact ones end in a 1 bit."""
    if x.dtype != FLOAT64:
        return np.asarray(x)
    toward_zero = truncated_float32(x)
    inexact = np.isfinite(toward_zero) & (toward_zero.astype(FLOAT64) != x)
    return np.asarray(toward_zero.view(np.uint32) | inexact).view(FLOAT32)


def truncated_float32(x: Any) -> Array:
    """float32 rounded towards zero, infinite from 2^128."""
    nearest = np.asarray(x).astype(FLOAT32)
    if x.dtype != FLOAT64:
        return nearest
    away = np.isfinite(nearest) & (np.abs(nearest.astype(FLOAT64)) > np.abs(x))
    toward_zero = np.where(away, np.nextafter(nearest, np.float32(0)), nearest)
    rounded_up_to_infinity = np.isinf(nearest) & (np.abs(x) < 2.0**128)
    largest = np.copysign(np.finfo(FLOAT32).max, nearest)
    return np.where(rounded_up_to_infinity, largest, toward_zero)
