# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of layer_norm share: cuda_src/layer_norm/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Struct, i32, i64

STAGED_THREADS = 512  # threads of a block whose rows stay on chip, at most
COLUMN_THREADS = 256  # of a block that walks down columns

# Elements that a thread holds of a row. In registers, by slots, by the bytes of an element of X and
# one of Y; of rows of more than DEEP_LENGTH, in blocks of STAGED_THREADS at most; of rows that fit
# into no block otherwise.
COLUMNS = {4: 32, 6: 16, 8: 16, 16: 8}
DEEP_LENGTH = 4096
DEEP_COLUMNS = {8: 32}
WIDE_COLUMNS = {4: 32, 6: 16, 8: 24, 16: 8}
# Of rows that are scaled alone, or twice as many.
FULL_COLUMNS = {4: 16, 6: 8, 8: 8, 16: 4}
# In shared memory, by slots; of single elements in both; by the bytes of an accumulator.
VECTOR_COLUMNS = {4: 32, 8: 8}
SINGLE_COLUMNS = {4: 16, 8: 8}

# `count` rows of `length`. A row has `threads`, a part of a warp that is a power of two or whole
# warps, and a block `groups` of them, each with rows of its own. After `period` rows, which divides
# the number of blocks, they begin alike. A row has so many `slots`, a thread `depth` of them. In
# shared memory are 1 or 2 rows of each group (`stages`); 2 where slots are elements.
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
