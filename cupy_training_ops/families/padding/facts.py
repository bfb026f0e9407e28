# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of padding share: cuda_src/padding/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot, Struct, i64
from ...facts import COPY_CHUNKS, COPY_THREADS, Divisor

THREADS = COPY_THREADS  # threads of a block
CHUNKS = Slot(COPY_CHUNKS)  # vectors that a thread writes
# Most dimensions before the innermost: no array in memory has more with two or more positions
# each.
MAX_DIMENSIONS = 50

# A dimension of dX with `extent` positions, of which a slice took `count`: start, start + step,
# ..., where step is `distance`, or -distance if `backwards` is 1. Those are dY's positions 0, 1,
# ...
Dimension = Struct(
    "Dimension",
    extent=Divisor.one,
    distance=Divisor.one,
    start=i64,
    backwards=i64,
    count=i64,
)

# All outer dimensions, the outermost first; the rest of `at` is zeros.
Dimensions = Struct("Dimensions", at=Dimension[MAX_DIMENSIONS])
