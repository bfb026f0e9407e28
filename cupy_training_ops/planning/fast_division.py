# SPDX-License-Identifier: MIT
"""Division by numbers the host knows, as a multiplication and a shift: core/fast_division.cuh."""

from __future__ import annotations

import numpy as np

from ..plan import by_value


def divisor_fields(value: int) -> tuple[int, int, int]:
    """core/fast_division.cuh's Divisor, for dividends below 2^63."""
    shift = (value - 1).bit_length()
    return value, (1 << 63 + shift) // value + 1, shift


def divisor(value: int) -> np.void:
    """A launch argument: core/fast_division.cuh's Divisor."""
    fields = np.array(divisor_fields(value), np.uint64)
    return by_value(value=np.int64(value), multiplier=fields[1], shift=np.int64(fields[2]))
