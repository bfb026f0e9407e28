# SPDX-License-Identifier: MIT
"""Dropout's ratio, and the elements that are kept at random."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...dtypes import Dtype, HostArray
from ...rules.philox import State, words
from ...rules.widening import round_number

DEFAULT_RATIO = 0.5
PIECE = 2**16  # elements whose words stay in the cache between draw and use


def keep_threshold(ratio: float) -> int:
    """An element is kept if its word is below (1 - ratio) 2^32; this is the largest such word."""
    return 2**32 - 1 - int(ratio * 2.0**32)


def dropout_scale(ratio: float, t: Dtype) -> np.floating:
    """The factor of kept elements, 1 / (1 - ratio), in the type that is computed in."""
    return round_number(1 / (1 - ratio), t)


def keep_masks(state: State, n: int, ratio: float) -> Iterator[tuple[slice, HostArray]]:
    """The masks of n elements, piece by piece: word <= keep_threshold(ratio)."""
    largest = keep_threshold(ratio)
    for start in range(0, n, PIECE):
        stop = min(n, start + PIECE)
        yield slice(start, stop), words(state, start, stop) <= largest
