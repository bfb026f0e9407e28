# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of gather share: cuda_src/gather/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Struct, i32, i64

THREADS = 256
MAX_DIMS = 32
ATOMIC_ITEMS = 4  # additions of one thread, its loads in flight together
STRIP_COLUMNS = 32
ZERO_VECS = 4  # stores of one thread
ROUND_NBYTES = 64  # of sums that one thread rounds
FANOUT = 32  # entries of a node of partial sums, and nodes of one above
LONG_ROW = 16  # entries from which on a row may be an item of its own
SORT_THREADS = 512
RADIX = SORT_THREADS  # digits at most: a thread looks after one of them
STARTS_ROWS = 4096  # keys whose starts a block finds
# Entries of a sort's tile that one thread moves, by the bytes of a key. Few are ranked sooner; a
# long sort takes as many as shared memory holds, so that more entries with one digit are written
# together.
SHORT_ITEMS = {4: 2, 8: 3}
LONG_ITEMS = {4: 6, 8: 3}
ALONE_THREADS = 1024  # of a block that sorts alone, in one launch
ALONE_ROWS = 4  # entries of each of them at most

COLUMNS = 16  # of a block that sorts columns, a warp each
TILE_ROWS = 256  # that it sorts at a time
RUN = 4  # entries of a tile and a bucket come in whole runs of so many
BUCKETS = 32  # of a column: a lane looks after each
BUCKET_ROWS = 2048  # rows of dX whose sums shared memory has
PADDED_ROWS = BUCKET_ROWS + 4  # sums of neighbouring columns in other banks of shared memory
SUM_COLUMNS = 8  # of a block that sums buckets, a warp each

# Slices of dY and rows of dX in a batch, and the elements of each of them.
Sizes = Struct("Sizes", n_slices=i64, n_rows=i64, width=i64)

# How batches of n items of `width` columns meet a grid. A block takes y items and some columns;
# grid x counts the items of `fold` batches and for each the `column_blocks` blocks that share its
# columns, grid z the folds. fold n fits into 32 bits, or fold is 1.
Items = Struct("Items", n_batches=i64, n=i64, fold=i64, column_blocks=i64)

# One level of the tree: FANOUT^l entries a node, and where among the sums of all `total` nodes
# this level's begin and those of the level below.
Level = Struct("Level", unit=i64, begin=i64, begin_below=i64, total=i64)

# The level above one whose blocks sum it, too, as soon as all children of a node are there: its n
# nodes, none where that level has a launch of its own.
Parents = Struct("Parents", n=i64, begin=i64)

# One digit of the keys of n entries; each of the `blocks` has `span` of them, whole tiles.
Pass = Struct("Pass", n=i64, span=i64, shift=i32, bits=i32, blocks=i64)

# All digits, `width` bits each, of the keys of n entries, of which a thread has `rows`.
AllDigits = Struct("AllDigits", n=i32, rows=i32, bits=i32, width=i32)

# An index of GatherND is a tuple of `count` indices into `extents`; a batch has `per_batch` tuples.
Tuples = Struct("Tuples", count=i64, per_batch=i64, extents=i64[MAX_DIMS])

# An element of GatherElements keeps its coordinates except the one on the axis, which has `extent`
# and `stride` in dX. The dimensions of the indices are coalesced: the last one has `columns`
# elements, those before it have `extents`; their strides are those in dX, 0 on the axis.
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

# Elements of dY that stay in their column, of which `spans` blocks have `span` rows each; a column
# has room for `capacity` entries.
ColumnSort = Struct("ColumnSort", columns=i64, rows=i32, span=i32, spans=i32, capacity=i32)
