# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of gist_guard share: cuda_src/gist_guard/facts.cuh."""

from __future__ import annotations

from ..gist.facts import BOX

TILE = BOX
THREADS = 256
NBYTES = 64  # of elements that an encoding thread has in flight, at least a tile
RESIDENT = {4: 768, 8: 512}  # threads of a multiprocessor, by the bytes of an accumulator
TOTALS = 5  # doubles in a block's sums
MOST_RATIO = 2.0**32  # one that counts as finite is below it
HASH, HALF = 2654435761, 16  # bits
