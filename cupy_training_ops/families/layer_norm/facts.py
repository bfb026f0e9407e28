# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of layer_norm share: cuda_src/layer_norm/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Struct, i32, i64

STAGED_THREADS = 512  # most threads of a block whose rows stay on chip
COLUMN_THREADS = 256  # threads of a block that sums over rows, for the gradients of scale and bias

# Most elements of a row in a thread's registers, by the bytes of an element of X and one of Y
# together. A row is divided into slots, vectors of 16 bytes of the wider type.
COLUMNS = {4: 32, 6: 16, 8: 16, 16: 8}
DEEP_LENGTH = 4096  # elements up to which a row is divided by COLUMNS, not by DEEP_COLUMNS
# Like COLUMNS, but for rows longer than DEEP_LENGTH, in blocks of at most STAGED_THREADS threads.
DEEP_COLUMNS = {8: 32}
# Like COLUMNS, but for rows that a block has no registers for by COLUMNS.
WIDE_COLUMNS = {4: 32, 6: 16, 8: 24, 16: 8}
# Elements of a row in a thread's registers, by the same bytes, if a row has exactly so many for
# each thread, or twice as many, and is only scaled, not centred.
FULL_COLUMNS = {4: 16, 6: 8, 8: 8, 16: 4}
# Most elements of a row that a thread has in shared memory, by the bytes of an accumulator, if
# slots are vectors.
VECTOR_COLUMNS = {4: 32, 8: 8}
# Most elements of a row that a thread has in shared memory or in registers, by the bytes of an
# accumulator, if slots are single elements.
SINGLE_COLUMNS = {4: 16, 8: 8}

# A matrix of `count` rows of `length` elements. A row has `threads` threads, a group: a power of
# two below a warp, or whole warps; a block has `groups` groups, each with rows of its own. Rows
# `period` apart begin at the same address modulo 16; period divides the number of blocks. A row is
# divided into `slots` slots, one vector or one element each, of which a thread has up to `depth`.
# Shared memory has `stages` rows of each group, 1 or 2; 2 if slots are single elements.
Rows = Struct(
    "Rows",
    count=i64,
    length=i64,
    threads=i32,
    groups=i32,
    period=i32,
    slots=i32,
    depth=i32,
    stages=i32,
)
