# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of gather share: cuda_src/gather/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Struct, i32, i64

THREADS = 256  # threads of a block, where no other number is declared below
MAX_DIMS = 32  # most indices of a tuple of GatherND, and dimensions of dX in GatherElements
ATOMIC_ITEMS = 4  # elements that a thread adds atomically; their loads are in flight together
STRIP_COLUMNS = 32  # columns of a strip of dY that a block adds atomically
ZERO_VECS = 4  # vectors of 16 bytes that a thread sets to zero
ROUND_NBYTES = 64  # bytes of sums that a thread rounds
FANOUT = 32  # sorted entries of a node of level 1 of the tree of sums; nodes of a node above
LONG_ROW = 16  # entries from which on a row of dX is summed by threads of its own

# ---- sort by key of entries (key: a row of dX; position: its slice of dY), digit by digit ----
SORT_THREADS = 512  # threads of a block that sorts
RADIX = SORT_THREADS  # most values of a digit: a thread has the counter of one of them
STARTS_ROWS = 4096  # keys for which a block finds the first of the sorted entries with the key
# Entries of a block's tile for each thread, by the bytes of a key, in a sort of few entries.
SHORT_ITEMS = {4: 2, 8: 3}
# Entries of a block's tile for each thread, by the bytes of a key, in a sort of many entries: as
# many as shared memory has room for, so that more entries with one digit are written side by side.
LONG_ITEMS = {4: 6, 8: 3}
ALONE_THREADS = 1024  # threads of a block that sorts all entries alone, in one launch
ALONE_ROWS = 4  # most entries of each thread of such a block

# ---- GatherElements along an axis before the last, where elements stay in their column ----
COLUMNS = 16  # columns of dY of a block that moves elements to buckets, a warp each
TILE_ROWS = 256  # rows of dY that such a warp moves at a time
RUN = 4  # entries of a run: what a tile gives to a bucket is filled up to whole runs
BUCKETS = 32  # most buckets of a column: each lane of a warp counts the elements of one
BUCKET_ROWS = 2048  # rows of a column of dX in a bucket, whose sums are in shared memory
# Sums from a column to the next in shared memory: 4 more than rows, so that rows of neighbouring
# columns are in different banks.
PADDED_ROWS = BUCKET_ROWS + 4
SUM_COLUMNS = 8  # columns of a block that sums buckets, a warp each

# A batch of dY is n_slices slices, a batch of dX n_rows rows, each of `width` elements.
Sizes = Struct("Sizes", n_slices=i64, n_rows=i64, width=i64)

# How n_batches batches of n items (nodes or rows, with columns) are divided among a grid. A block
# has blockDim.y items and one of column_blocks parts of their columns. gridDim.x blocks have the
# items of `fold` batches, and those of the same items are neighbours; blockIdx.z counts such
# groups of batches. fold * n fits into 32 bits, or fold is 1.
Items = Struct("Items", n_batches=i64, n=i64, fold=i64, column_blocks=i64)

# One level l of the tree of sums: a node is `unit` = FANOUT^l sorted entries. Of the `total` sums
# of a batch, of all levels, this level's begin at number `begin`, those of the level below at
# begin_below.
Level = Struct("Level", unit=i64, begin=i64, begin_below=i64, total=i64)

# The level above, whose nodes are summed in the same launch, each as soon as all its children are:
# n nodes, whose sums begin at number `begin`. n is 0 if that level has a launch of its own.
Parents = Struct("Parents", n=i64, begin=i64)

# A pass of the sort, by one digit of the keys of n entries: the `bits` bits of a key from bit
# `shift` on. Each of `blocks` blocks has `span` entries, whole tiles.
Pass = Struct("Pass", n=i64, span=i64, shift=i32, bits=i32, blocks=i64)

# A sort of n entries by one block: by the lower `bits` bits of a key, in digits of `width` bits. A
# thread has `rows` entries.
AllDigits = Struct("AllDigits", n=i32, rows=i32, bits=i32, width=i32)

# Indices of GatherND: per_batch tuples in each batch, each of `count` indices into the dimensions
# of X after the batch's, of these extents; entries after the first `count` are zeros.
Tuples = Struct("Tuples", count=i64, per_batch=i64, extents=i64[MAX_DIMS])

# Where GatherElements' gradient adds an element of dY: at the same coordinates of dX, except on
# the axis, which has `extent` and `stride` in dX. The other strides are in dX, too, and 0 on the
# axis. Dimensions of dY are merged where possible: the last has `columns` elements, column_stride
# apart in dX, the n_outer ones before it `extents` and `strides`; entries after the first n_outer
# are zeros. All strides count elements of dX, or its rows if columns are sorted (ColumnSort).
Lines = Struct(
    "Lines",
    extent=i64,
    stride=i64,
    columns=i64,
    column_stride=i64,
    n_outer=i64,
    extents=i64[MAX_DIMS],
    strides=i64[MAX_DIMS],
)

# dY as a matrix of rows x columns, whose elements stay in their column of dX. A column is divided
# among `spans` blocks, `span` rows each, and has room for `capacity` entries in scratch memory.
ColumnSort = Struct("ColumnSort", columns=i64, rows=i32, span=i32, spans=i32, capacity=i32)
