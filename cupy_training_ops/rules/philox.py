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

State = Sequence[int]  # (seed, offset), each of 64 bits

_LOW = 2**32 - 1
_SHIFT, _MASK = np.uint64(32), np.uint64(_LOW)


def block(counter: Sequence[HostArray | int], key: tuple[int, int]) -> list[HostArray]:
    """Return 4 arrays of random words of 32 bits, in uint64, a block for each counter.

    counter: 4 words of 32 bits, numbers or arrays that broadcast. key: 2 words of 32 bits.
    """
    return [word & _MASK for word in _rounds(counter, key)]


def _rounds(counter: Sequence[HostArray | int], key: tuple[int, int]) -> Sequence[HostArray]:
    """Return `block`'s words for its counter and key, but with any bits above the lower 32.

    A round: (w0, w1, w2, w3) become (high(M2 w2) ^ w1 ^ k0, low(M2 w2), high(M0 w0) ^ w3 ^ k1,
    low(M0 w0)), with 64-bit products. `even` has w0 and w2, `odd` w1 and w3, so that each step is
    one call of NumPy. Instead of swapping their rows in each round, row 0 is w2 and row 1 is w0
    after every odd number of rounds: multipliers and keys are swapped instead.
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
    """Return random words start:stop of a state, in uint32: word i is word i % 4 of block i // 4.

    The counter of a block is (its number, offset), the key the seed, each as two words of 32 bits.
    """
    seed, offset = (int(number) for number in state)
    first = start // N_WORDS
    blocks = np.arange(first, -(-stop // N_WORDS), dtype=np.uint64)
    counter = (blocks & _MASK, blocks >> _SHIFT, offset & _LOW, offset >> 32)
    drawn = np.empty((blocks.size, N_WORDS), np.uint32)
    for place, word in enumerate(_rounds(counter, (seed & _LOW, seed >> 32))):
        drawn[:, place] = word
    return drawn.ravel()[start - N_WORDS * first : stop - N_WORDS * first]
