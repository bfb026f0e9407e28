# SPDX-License-Identifier: MIT
"""Division by numbers the host knows, as a multiplication and a shift: core/fast_division.cuh."""

from __future__ import annotations

import numpy as np

from ..facts import Divisor
from ..plan import by_value


def divisor_fields(value: int) -> tuple[int, int, int]:
    """The fields of a Divisor, for dividends below 2^63."""
    shift = (value - 1).bit_length()
    return value, (1 << 63 + shift) // value + 1, shift


def divisor(value: int) -> np.void:
    """A launch argument."""
    return by_value(Divisor, **dict(zip(Divisor.fields, divisor_fields(value), strict=True)))
