# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of batch_norm share: cuda_src/batch_norm/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot, Struct, double, flag, i32, i64, u32
from ...facts import Divisor

THREADS = 256  # threads of a block, at most; those of staged channels have STAGED_THREADS
CHANNEL_NBYTES = 128  # bytes of a channel in a thread's registers, of all input arrays together
SINGLE_SLOTS = 16  # elements that a thread has in registers, where it loads them one by one
MAX_COLUMNS = 8  # neighbouring columns of a thread, at most: a vector of the narrowest type
RING_GROUPS = 4  # groups of rows that a thread copies to shared memory ahead of their use
RING_BLOCKS = 2  # blocks of a multiprocessor, in kernels with a ring of rows in shared memory
RING_ROWS = 4  # rows of a group, counted over all input arrays: 4 of one, or 2 of each of two
STAGED_THREADS = 512  # threads of a block whose channels fit into shared memory, at most
STAGED_ROWS = 4  # rows that a thread of such a block loads together, of all input arrays
# Groups of asynchronous copies of a tile, at most: the first are used while the last are under
# way.
MOST_GROUPS = 4
MOMENTS = 3  # numbers of a partial sum in the normalization
SLOPES = 2  # numbers of a partial sum in the gradient
COEFFICIENTS = 4  # numbers from which the results of a channel are computed
# Slots of the residual, an array added to the result, that a thread loads together, beside a
# channel's.
RESIDUAL_SLOTS = 2
RELU = Slot(0)  # 1: relu follows, of the sum with a residual if there is one

# scale: the scale, the bias and their gradients have the 2-byte type of X; statistics: means and
# variances have it. False: they have the accumulator's type.
Halves = Struct("Halves", scale=flag, statistics=flag)

# Attributes of BatchNormInternal. rest: 1 - momentum. unbiased: the variance is divided by n - 1.
Rule = Struct("Rule", epsilon=double, momentum=double, rest=double, unbiased=flag)

# An array (outer, n_channels, length): a channel is `outer` pieces of `length` neighbouring
# elements, in slots of one vector or one element. A piece has `slots` of them, a channel
# `n_slots`, a block's part of the channel `span`, below 2^31. A thread has every blockDim.x-th
# slot: to go on to its next, it adds `slots_on` to the slot's number in the piece and
# `elements_on` to the index in the array; past the end of the piece also -slots, and `wrap`.
Pieces = Struct(
    "Pieces",
    slots=Divisor.one,
    n_channels=i64,
    length=i64,
    n_slots=i64,
    span=i64,
    slots_on=i64,
    elements_on=i64,
    wrap=i64,
)

# An array as a matrix of n_rows rows, in which a channel is `length` neighbouring columns. A tile
# is `tile_channels` channels, each row of it shared by `width` threads; its rows are divided among
# `n_parts` parts, each for a block, in which a thread has up to `turns` rows, below 2^31.
# `aligned`: each thread's columns begin at a multiple of 16 bytes, in every row and array.
# `ring_groups`: groups of rows that shared memory has room for, at least RING_GROUPS; 0 without
# shared memory. `cached`: a thread's last rows, of those that are not in shared memory, which the
# L2 cache shall keep for the second pass.
Columns = Struct(
    "Columns",
    n_rows=i64,
    n_channels=i64,
    n_parts=i64,
    turns=i64,
    length=u32,
    tile_channels=u32,
    width=u32,
    ring_groups=u32,
    cached=i32,
    aligned=flag,
)

# A matrix as in Columns, in tiles of `tile_channels` channels that fit into the shared memory of a
# block: `staged_rows` rows of each thread, where it has more the others are read twice. They are
# copied in `tile_groups` groups of `group_rows` rows, to a ring of `ring_rows` rows, which has
# room for `ring_groups` groups; a tile begins `ring_step` rows after the one before.
StagedTiles = Struct(
    "StagedTiles",
    n_channels=i64,
    n_rows=u32,
    n_tiles=u32,
    length=u32,
    tile_channels=u32,
    width=u32,
    staged_rows=i32,
    group_rows=i32,
    tile_groups=i32,
    ring_groups=i32,
    ring_rows=i32,
    ring_step=i32,
)

# Work of a launch: n_items parts of tiles, from tile first_tile on, `n_parts` of each tile. Their
# sums are added up in groups of `group_parts` parts, then the groups (1: no groups). Item i is
# applied after item i + `lag` is summed, n_parts - 1 <= lag <= n_items; batch_norm/schedule.cuh
# has an example. `sums`, `applies`: the launch has the first pass, the second pass.
Schedule = Struct(
    "Schedule",
    first_tile=u32,
    n_items=u32,
    n_parts=u32,
    group_parts=u32,
    lag=u32,
    sums=flag,
    applies=flag,
)
