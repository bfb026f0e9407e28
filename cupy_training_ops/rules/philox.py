# SPDX-License-Identifier: MIT
"""Words at random, which depend on seed, offset and place alone; math/philox.cuh has the same.

Philox 4x32-10: Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (2011).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..dtypes import HostArray

N_WORDS = 4  # of a block
ROUNDS = 10
MULTIPLIER_0, MULTIPLIER_2 = 0xD2511F53, 0xCD9E8D57  # of words of a counter
KEY_STEP_0, KEY_STEP_1 = 0x9E3779B9, 0xBB67AE85  # from round to round

State = Sequence[int]  # seed and offset, each of 64 bits

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
