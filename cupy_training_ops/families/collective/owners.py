# SPDX-License-Identifier: MIT
"""Who owns which tensor of a list."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ...errors import refuse

ALIGNMENT = 32  # elements of a rank's chunk of a list are a multiple of it


def owners(op: str, sizes: Sequence[int], n_ranks: int) -> list[int]:
    """Which rank owns each tensor of a list whole: the one in whose chunk of all elements it lies.

    Chunks are equal, and multiples of 32 elements; there is padding behind the last tensor, as much
    as a multiple of every chunk's alignment where nothing would have to be padded.
    """
    total, alignment = sum(sizes), ALIGNMENT * n_ranks
    chunk = (total + alignment - total % alignment) // n_ranks
    found = []
    starts = itertools.accumulate(sizes, initial=0)
    for i, (start, size) in enumerate(zip(starts, sizes, strict=False)):
        owner = start // chunk
        if start + size > (owner + 1) * chunk:
            expected = f"a tensor inside one rank's chunk of {chunk} elements, to be owned whole"
            refuse(op, f"input[{i}]", expected, f"elements {start} to {start + size}")
        found.append(owner)
    return found
