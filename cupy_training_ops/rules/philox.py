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
