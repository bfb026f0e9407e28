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
PIECE = 2**16  # elements whose words stay in the cache while they are made
_LOW = 2**32 - 1
_SHIFT, _MASK = np.uint64(32), np.uint64(_LOW)


def block(counter: Sequence[HostArray | int], key: tuple[int, int]) -> list[HostArray]:
    """The four words of each counter, in the lower halves of 64 bits."""
    return [word & _MASK for word in _rounds(counter, key)]


def _rounds(counter: Sequence[HostArray | int], key: tuple[int, int]) -> Sequence[HostArray]:
    """The four words of each counter, above which there may be other bits.

    Words 0 and 2 stand in one array, words 1 and 3 in another, so that a step is one call of NumPy.
    A round gives a new word 2 from word 0 and a new word 0 from word 2: they change places.
    """
    c = [np.asarray(word, np.uint64) for word in counter]
    shape = (2, *np.broadcast_shapes(*(word.shape for word in c)))
    even, odd, product = (np.empty(shape, np.uint64) for _ in range(3))
    even[0], even[1], odd[0], odd[1] = c[0], c[2], c[1], c[3]
    column = (2, *[1] * (len(shape) - 1))
    multipliers = np.array([MULTIPLIER_0, MULTIPLIER_2], np.uint64).reshape(column)
    for number in range(ROUNDS):
        keys = [(key[0] + number * KEY_STEP_0) & _LOW, (key[1] + number * KEY_STEP_1) & _LOW]
        own = np.array(keys if number % 2 else keys[::-1], np.uint64).reshape(column)
        np.multiply(even, multipliers if number % 2 == 0 else multipliers[::-1], out=product)
        np.right_shift(product, _SHIFT, out=even)
        even ^= odd[::-1]
        even ^= own
        np.bitwise_and(product, _MASK, out=odd)
    return even[0], product[0], even[1], product[1]


def words(state: State, start: int, stop: int) -> HostArray:
    """Words of n elements from `start` on: word i % 4 of block i / 4."""
    seed, offset = (int(number) for number in state)
    first = start // N_WORDS
    blocks = np.arange(first, -(-stop // N_WORDS), dtype=np.uint64)
    counter = (blocks & _MASK, blocks >> _SHIFT, offset & _LOW, offset >> 32)
    drawn = np.empty((blocks.size, N_WORDS), np.uint32)
    for place, word in enumerate(_rounds(counter, (seed & _LOW, seed >> 32))):
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
