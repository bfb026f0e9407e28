# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of gist_guard share: cuda_src/gist_guard/facts.cuh."""

from __future__ import annotations

from ..gist.facts import BOX

TILE = BOX  # elements of a tile: a box of MSFP15
THREADS = 256  # threads of a block
NBYTES = 64  # bytes of elements, whole tiles, that a thread loads together
RESIDENT = {4: 768, 8: 512}  # threads on a multiprocessor, by the bytes of an accumulator
TOTALS = 5  # doubles of a block's struct Totals
MOST_RATIO = 2.0**32  # ratios of a group's error to its deviation from here on count as infinite
# A piece's hash is the upper half of the 32 bits of its number times HASH, a prime near 2^32
# divided by the golden ratio.
HASH = 2654435761
HALF = 16  # bits of a hash
