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
    """Return the largest word (random uint32) that keeps its element: below (1 - ratio) 2^32."""
    return 2**32 - 1 - int(ratio * 2.0**32)


def dropout_scale(ratio: float, t: Dtype) -> np.floating:
    """Return the factor of kept elements, 1 / (1 - ratio), in the accumulator's type of `t`."""
    return round_number(1 / (1 - ratio), t)


def keep_masks(state: State, n: int, ratio: float) -> Iterator[tuple[slice, HostArray]]:
    """Yield the mask of n elements in pieces: a slice of them, and their bools, True where kept.

    state: seed and offset of the Philox generator, whose word i decides over element i.
    """
    largest = keep_threshold(ratio)
    for start in range(0, n, PIECE):
        stop = min(n, start + PIECE)
        yield slice(start, stop), words(state, start, stop) <= largest
