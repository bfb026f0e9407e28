# SPDX-License-Identifier: MIT
"""Dropout's random words and ratio; words depend on seed, offset and place alone.

They are those of dropout/philox.cuh. Philox 4x32-10: Salmon, Moraes, Dror, Shaw: Parallel random
numbers: as easy as 1, 2, 3 (2011).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...dtypes import Dtype, HostArray
from ...rules.widening import round_number
from .facts import KEY_STEP_0, KEY_STEP_1, MULTIPLIER_0, MULTIPLIER_2, N_WORDS, ROUNDS

State = Sequence[int]  # seed and offset, each of 64 bits

DEFAULT_RATIO = 0.5
PIECE = 2**15  # elements whose words stay in the cache while they are made
_LOW = 2**32 - 1
_SHIFT, _MASK = np.uint64(32), np.uint64(_LOW)


def block(counter: Sequence[HostArray | int], key: tuple[int, int]) -> list[HostArray]:
    """The four words of each counter, in the lower halves of 64 bits."""
    c = [np.asarray(word, np.uint64) for word in counter]
    for number in range(ROUNDS):
        steps = KEY_STEP_0, KEY_STEP_1
        keys = [np.uint64((k + number * step) & _LOW) for k, step in zip(key, steps, strict=True)]
        a, b = np.uint64(MULTIPLIER_0) * c[0], np.uint64(MULTIPLIER_2) * c[2]
        c = [(b >> _SHIFT) ^ c[1] ^ keys[0], b & _MASK, (a >> _SHIFT) ^ c[3] ^ keys[1], a & _MASK]
    return c


def words(state: State, start: int, stop: int) -> HostArray:
    """Words of n elements from `start` on: word i % 4 of block i / 4."""
    seed, offset = (int(number) for number in state)
    first = start // N_WORDS
    blocks = np.arange(first, -(-stop // N_WORDS), dtype=np.uint64)
    counter = (blocks & _MASK, blocks >> _SHIFT, offset & _LOW, offset >> 32)
    drawn = np.empty((blocks.size, N_WORDS), np.uint32)
    for place, word in enumerate(block(counter, (seed & _LOW, seed >> 32))):
        drawn[:, place] = word
    return drawn.ravel()[start - N_WORDS * first : stop - N_WORDS * first]


def largest_kept(ratio: float) -> int:
    """An element is kept if its word is below (1 - ratio) 2^32; this is the largest such word."""
    return _LOW - int(ratio * 2.0**32)


def dropout_scale(ratio: float, t: Dtype) -> np.floating:
    """The factor of kept elements, 1 / (1 - ratio), in the type that is computed in."""
    return round_number(1 / (1 - ratio), t)


def keep_masks(state: State, n: int, ratio: float) -> Iterator[tuple[slice, HostArray]]:
    """The masks of n elements, piece by piece: word <= largest_kept(ratio)."""
    largest = largest_kept(ratio)
    for start in range(0, n, PIECE):
        stop = min(n, start + PIECE)
        yield slice(start, stop), words(state, start, stop) <= largest
