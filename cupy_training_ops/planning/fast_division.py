# SPDX-License-Identifier: MIT
"""Division by numbers the host knows, as a multiplication and a shift: core/fast_division.cuh."""

from __future__ import annotations

import numpy as np

from ..facts import Divisor
from ..plan import by_value


def divisor_fields(value: int) -> tuple[int, int, int]:
    """Return (value, multiplier, shift) of a Divisor, for dividends below 2^63.

    dividend // value = dividend * multiplier >> (63 + shift), where 2^shift >= value, and the
    multiplier is 2^(63 + shift) / value, rounded up, which fits 64 bits.
    """
    shift = (value - 1).bit_length()
    return value, (1 << 63 + shift) // value + 1, shift


def divisor(value: int) -> np.void:
    """Return the launch argument by which a kernel divides by `value`."""
    return by_value(Divisor, **dict(zip(Divisor.fields, divisor_fields(value), strict=True)))
