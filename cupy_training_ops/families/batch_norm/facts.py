# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of batch_norm share: cuda_src/batch_norm/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Struct, double, flag, i32, i64, u32
from ...facts import Divisor

THREADS = 256  # of a block, where several share channels
CHANNEL_NBYTES = 128  # that a thread holds of a channel, of all arrays that are read
SINGLE_SLOTS = 16  # that it holds where a slot is one element
MAX_COLUMNS = 8  # of a thread; a vector has no more, as plans know
RING_GROUPS = 4  # of rows that are copied to shared memory at a time
RING_BLOCKS = 2  # with such rows that share a multiprocessor
RING_ROWS = 4  # of a thread in a group, of all arrays that are read
HELD_THREADS = 512  # of a block that holds channels in shared memory, at most
HELD_ROWS = 4  # of all arrays that are read, that such a thread uses at a time
MOST_GROUPS = 4  # of copies, the first of which are used while the last are on their way
MOMENTS, SLOPES = 3, 2  # numbers that parts of a channel have, forwards and backwards
COEFFICIENTS = 4  # of a channel

# Flags: scale, bias and their gradients, and statistics, have X's half type.
Halves = Struct("Halves", scale=flag, statistics=flag)

# rest: 1 - momentum.
Rule = Struct("Rule", epsilon=double, momentum=double, rest=double, unbiased=flag)

# A channel in pieces of neighbouring elements: `slots` of a piece, `n_slots` of the channel, `span`
# of a part, below 2^31. From a slot of a thread to its next, which is blockDim.x slots on, there
# are `slots_on` slots of the piece and `elements_on` elements of the array; `wrap` elements more
# where it is past the end of the piece.
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

# A channel in `length` columns. A tile has so many `channels`; `width` threads share its rows.
# Parts take turns at the rows of a block, in so many `turns`, below 2^31. `aligned`: each slot lies
# at a multiple of 16 bytes, in all arrays. By way of shared memory a thread has room for `ring`
# groups of rows there, RING_GROUPS or more. The L2 cache is to keep the last `cached` rows of a
# thread, of those that are not there.
Columns = Struct(
    "Columns",
    n_rows=i64,
    n_channels=i64,
    n_parts=i64,
    turns=i64,
    length=u32,
    channels=u32,
    width=u32,
    ring=u32,
    cached=i32,
    aligned=flag,
)

# Channels in `length` columns that blocks hold, each some of `n_tiles` tiles of so many `channels`.
# `width` threads share a row; a thread has `depth` rows of a tile in shared memory. They are copied
# in groups of so many rows, `groups_of_tile` one after the other, to a `ring` of rows that has room
# for `groups_of_ring`; there a tile begins `step` rows after the one before.
Held = Struct(
    "Held",
    n_channels=i64,
    n_rows=u32,
    n_tiles=u32,
    length=u32,
    channels=u32,
    width=u32,
    depth=i32,
    of_group=i32,
    groups_of_tile=i32,
    groups_of_ring=i32,
    ring=i32,
    step=i32,
)

# Tiles from the first one on; `n_items` of one pass, `n_parts` of each tile, whose sums are put
# together in groups of so many; `lag` is from n_parts - 1 to n_items; which passes there are.
Schedule = Struct(
    "Schedule",
    first_tile=u32,
    n_items=u32,
    n_parts=u32,
    of_group=u32,
    lag=u32,
    sums=flag,
    applies=flag,
)
