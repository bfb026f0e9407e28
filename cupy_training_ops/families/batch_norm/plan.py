# SPDX-License-Identifier: MIT
"""Launches of batch normalisation, whose channels are divided among blocks.

A channel that fits into a block's registers or shared memory is read once. Of others several blocks
have a part each, which they read again, from the L2 cache, when the sums of all parts are known: a
pass that sums and a pass that applies, in one launch; see batch_norm/schedule.cuh.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...declare.schema import Spec
from ...dtypes import Dtype
from ...facts import WARP
from ...plan import (
    VEC_NBYTES,
    Config,
    Device,
    Launch,
    LaunchError,
    Plan,
    Scratch,
    ScratchMemory,
    align_up,
    by_value,
    ceil_div,
    slots,
)
from ...planning.fast_division import divisor
from ...rules.widening import computed_in
from .facts import (
    CHANNEL_NBYTES,
    COEFFICIENTS,
    RING_BLOCKS,
    RING_GROUPS,
    RING_ROWS,
    SINGLE_SLOTS,
    THREADS,
    Columns,
    Halves,
    Pieces,
    Schedule,
)
from .plan_shared_memory import RESERVED_NBYTES, Channels, Tiles, fit_tiles

# Blocks of a multiprocessor, each with one item of work.
PIECE_BLOCKS = 3  # of kernels over pieces of channels
COLUMN_BLOCKS = 2  # of those over tiles of columns
PIECE_NBYTES = 64  # of a channel's neighbours in a row, from which on blocks take such pieces
TILE_NBYTES = 256  # of a row in a tile of columns, at least
PART_NBYTES = 32_768  # of a tile of columns, from which on it may have another part
COLUMNS_NBYTES = 2**27  # of an array in columns, to which each block has one part, beyond it two
ASYNC_COPIES = (8, 0)  # the first GPUs with copies to shared memory that go on meanwhile
TICKET_NBYTES = 32  # of shared memory beside the sums and the ring
# Bytes that L2 keeps from one pass to the next, of an array of which blocks keep nothing or some.
CACHED_NBYTES, CACHED_BESIDE_RINGS = 48 * 2**20, 16 * 2**20
MANY_ITEMS = 4  # items of work for each block, from which on parts may be larger
MAX_PARTS = 16_384  # of a channel, each with one partial sum
MERGED_PARTS = 16  # by a thread, one after the other; of more of them groups are merged first
MERGED_SUMS = 2**17  # of all parts and channels of a tile
MAX_TILES = 2048  # of a launch: their counters lie at the start of the scratch memory
MAX_ITEMS = 2**30


class Kernels(NamedTuple):
    """The kernels of an operator, by how they divide channels; see batch_norm/batch_norm.cu."""

    channels: str  # that fit into the registers of a block
    staged_channels: str  # that fit into its shared memory, in slots of 16 bytes
    narrow_staged_channels: str  # the same in slots of 8 bytes
    channel_parts: str
    single_channel_parts: str  # of unaligned elements
    column_parts: str
    column_rings: str  # by way of shared memory


NORMALIZE = Kernels(
    channels="batch_norm__channels",
    staged_channels="batch_norm__staged_channels",
    narrow_staged_channels="batch_norm__narrow_staged_channels",
    channel_parts="batch_norm__channel_parts",
    single_channel_parts="batch_norm__single_channel_parts",
    column_parts="batch_norm__column_parts",
    column_rings="batch_norm__column_rings",
)
GRADIENT = Kernels(
    channels="batch_norm__gradient_of_channels",
    staged_channels="batch_norm__gradient_of_staged_channels",
    narrow_staged_channels="batch_norm__gradient_of_narrow_staged_channels",
    channel_parts="batch_norm__gradient_of_channel_parts",
    single_channel_parts="batch_norm__gradient_of_single_channel_parts",
    column_parts="batch_norm__gradient_of_column_parts",
    column_rings="batch_norm__gradient_of_column_rings",
)


@dataclass(frozen=True)
class Work:
    """Work of the launches of one call: n_tiles of channels, in parts, each an item for a block."""

    n_tiles: int
    n_parts: int  # of each tile
    group_parts: int = 1  # parts whose sums are merged first; 1: no groups
    sums: bool = True  # there is a pass that sums
    applies: bool = True  # there is a pass that writes outputs with as many elements as X

    @property
    def n_groups(self) -> int:
        """Return the number of groups of a tile's parts."""
        return ceil_div(self.n_parts, self.group_parts)


@dataclass(frozen=True)
class Matrix:
    """An array (outer, n, length) as the matrix (outer, n * length) in tiles of `tile` channels.

    A thread has `width` neighbouring columns of a tile, a vector (slot) of each of its rows.
    """

    channels: Channels
    tile: int
    width: int

    @property
    def n_tiles(self) -> int:
        return ceil_div(self.channels.n, self.tile)

    @property
    def threads(self) -> int:
        """Threads that share a row of a tile."""
        return ceil_div(self.row_elements, self.width)

    @property
    def is_whole(self) -> bool:
        """Return True if `width` divides rows of the array and of a tile: vectors stay in a row."""
        columns = self.channels.n * self.channels.length, self.row_elements
        return all(n % self.width == 0 for n in columns)

    @property
    def row_elements(self) -> int:
        """Elements of a row of a tile."""
        return self.tile * self.channels.length

    def turns(self, n_parts: int = 1) -> int:
        """Return how many rows a thread has, at most, where a tile has `n_parts`."""
        return ceil_div(self.channels.outer, n_parts * (THREADS // self.threads))

    def slots(self, n_parts: int) -> int:
        """Return the vectors that all threads of all parts have when each has one row."""
        return n_parts * self.n_tiles * (THREADS // self.threads) * self.threads

    def layout(self, n_parts: int, ring: int, cached: int, aligned: bool) -> np.void:
        """Return the struct Columns.

        n_parts: of a tile. ring: groups of a thread's rows that shared memory has room for; 0
        without. cached: rows of a thread that L2 is to keep. aligned: all vectors are.
        """
        return by_value(
            Columns,
            n_rows=self.channels.outer,
            n_channels=self.channels.n,
            n_parts=n_parts,
            turns=self.turns(n_parts),
            length=self.channels.length,
            tile_channels=self.tile,
            width=self.threads,
            ring_groups=ring,
            cached=cached,
            aligned=aligned,
        )


@dataclass(frozen=True)
class Call:
    """One call of an operator, from which `plan` makes its launches.

    kernels   their names, by how channels are divided
    types     of X, of scale and bias, of statistics
    read      the arrays, like X, whose elements are summed
    applied   the outputs with as many elements, None where one is not wanted
    arrays    all arrays in the order of the kernel's first parameters
    options   numbers and structs after them
    of_relu   the last arguments; None each without relu
    sums      False where the caller gives the statistics
    """

    device: Device
    kernels: Kernels
    types: tuple[Dtype, Dtype, Dtype]
    read: Sequence[Spec]
    applied: tuple[Spec | None, ...]
    arrays: tuple[Spec | None, ...]
    options: tuple[object, ...]
    n_fields: int  # numbers of a partial sum of a channel
    of_relu: tuple[Spec | None, ...]
    relu: bool = False
    sums: bool = True

    def plan(self) -> Plan:
        """Plan the launches: whole channels on chip if they fit, else parts by columns, pieces.

        aligned, in methods: True if every array of elements begins at a multiple of 16 bytes.
        """
        channels = Channels.of_arrays(self.read)
        of_elements = *self.read, *self.applied, *self.of_relu
        aligned = all(s.aligned for s in of_elements if s is not None)
        if not channels.elements:
            return self._whole_channels(channels)
        if (tiles := self._shared_memory_tiles(channels, aligned)) is not None:
            narrow, wide = self.kernels.narrow_staged_channels, self.kernels.staged_channels
            symbol = narrow if tiles.is_narrow else wide
            return Plan((self._launch(symbol, tiles.config, tiles.argument),))
        if self._go_by_columns(channels, aligned):
            return self._in_columns(channels, aligned)
        return self._in_pieces(channels, aligned)

    @property
    def t(self) -> Dtype:
        """Return the type of X's elements."""
        return self.types[0]

    @property
    def applies(self) -> bool:
        """Return True if an output with as many elements is wanted."""
        return any(output is not None for output in self.applied)

    @property
    def width(self) -> int:
        """Return the elements of a 16-byte vector."""
        return VEC_NBYTES // self.t.itemsize

    def _go_by_columns(self, channels: Channels, aligned: bool) -> bool:
        """Return True if a block takes tiles of columns of the matrix (outer, n * length).

        aligned: all arrays begin at multiples of 16 bytes. Otherwise it works on pieces, the
        `length` neighbours of one channel in a row. Columns serve where pieces are short, or where
        rows are whole numbers of vectors and pieces are not.
        """
        if channels.n > 1 and channels.length * self.t.itemsize < PIECE_NBYTES:
            return True
        row, tile = channels.n * channels.length, self._vectors(channels) * channels.length
        by_vectors = aligned and row % self.width == 0 and tile <= self.width * THREADS
        return by_vectors and channels.length % self.width > 0 and channels.n > 1

    # ---- channels in shared memory ---------------------------------------------------------------

    def _shared_memory_tiles(self, channels: Channels, aligned: bool) -> Tiles | None:
        """Return tiles that fit into shared memory; None where none do, or registers suffice.

        aligned: all arrays begin at multiples of 16 bytes.
        """
        if not (aligned and self.sums) or self._fits(channels):
            return None
        sizes = self.t.itemsize, computed_in(self.t).itemsize
        return fit_tiles(self.device, channels, len(self.read), *sizes, self.n_fields)

    # ---- pieces ----------------------------------------------------------------------------------

    def _in_pieces(self, channels: Channels, aligned: bool) -> Plan:
        """Plan by pieces: a block has a channel in registers, or a part of one, `span` slots.

        aligned: all arrays begin at multiples of 16 bytes.
        A piece is the `length` neighbours of a channel in one row, a slot its vector or element.
        """
        whole = aligned and channels.length % self.width == 0
        if whole and self.sums and self._fits(channels):
            return self._whole_channels(channels)
        width = self.width if whole else 1
        n_slots = channels.elements // width
        batch = THREADS * self._depth(width)  # slots that a block has in registers
        span = batch * ceil_div(n_slots, batch * MAX_PARTS)
        blocks = PIECE_BLOCKS * self.device.multiprocessors
        if channels.n * ceil_div(n_slots, 2 * span) >= MANY_ITEMS * blocks:
            span *= 2  # barriers and tickets cost less
        symbol = self.kernels.channel_parts if whole else self.kernels.single_channel_parts
        n_parts = ceil_div(n_slots, span)
        work = Work(channels.n, n_parts, 1, self.sums, self.applies)
        layout = pieces(channels, width, span, THREADS)
        return self._schedule(symbol, PIECE_BLOCKS, channels.n, layout, work)

    def _fits(self, channels: Channels) -> bool:
        """Return True if a channel is whole vectors that the registers of a block have room for."""
        room = THREADS * self._depth(self.width) * self.width
        return channels.length % self.width == 0 and channels.elements <= room

    def _depth(self, width: int) -> int:
        """Return how many slots of `width` elements a thread has in registers of each array."""
        of_all = CHANNEL_NBYTES // (width * self.t.itemsize) if width > 1 else SINGLE_SLOTS
        return of_all // len(self.read)

    def _whole_channels(self, channels: Channels) -> Plan:
        """Plan one block a channel, two slots a thread, or more where the block is full."""
        n_slots = channels.elements // self.width
        threads = min(THREADS, align_up(max(1, ceil_div(n_slots, 2)), WARP))
        layout = pieces(channels, self.width, max(1, n_slots), threads)
        config = Config((channels.n,), (threads,))
        return Plan((self._launch(self.kernels.channels, config, layout),))

    # ---- columns ---------------------------------------------------------------------------------

    def _in_columns(self, channels: Channels, aligned: bool) -> Plan:
        """Plan by tiles of columns, whose rows are divided into parts, one for each block.

        There are as many parts as blocks want, but at most a row each, PART_NBYTES bytes or more,
        and MERGED_SUMS sums for a tile. aligned: all arrays begin at multiples of 16 bytes.
        """
        matrix = Matrix(channels, self._tile(channels), self.width)
        aligned = aligned and matrix.is_whole
        row_nbytes = matrix.row_elements * self.t.itemsize
        nbytes = channels.outer * matrix.n_tiles * row_nbytes
        ring = self._ring() if aligned else 0
        blocks = RING_BLOCKS if ring else COLUMN_BLOCKS
        symbol = self.kernels.column_rings if ring else self.kernels.column_parts
        n_items = _rounds(nbytes) * blocks * self.device.multiprocessors
        most = min(matrix.turns(), ceil_div(channels.outer * row_nbytes, PART_NBYTES))
        of_tile = min(MERGED_SUMS // matrix.tile, ceil_div(n_items, matrix.n_tiles))
        n_parts = max(1, min(most, of_tile))
        cached = self._cached_rows(matrix, n_parts, ring)
        group_parts = _group_parts(n_parts, matrix.tile)
        work = Work(matrix.n_tiles, n_parts, group_parts, self.sums, self.applies)
        layout = matrix.layout(n_parts, ring, cached, aligned)
        shared_nbytes = ring * self._group_nbytes
        return self._schedule(symbol, blocks, channels.n, layout, work, shared_nbytes)

    def _ring(self) -> int:
        """Return how many groups of rows fit into a block's shared memory; 0: no ring is used.

        A ring is a circular buffer there, to which threads copy their next rows by groups. None is
        used where too few fit, or for types of 4 bytes or more: they take fewer instructions for
        each byte, and have as many loads in flight without it.
        """
        if self.device.capability < ASYNC_COPIES or self.t.itemsize > 2:
            return 0
        sums = 2 * self.width * THREADS * computed_in(self.t).itemsize
        of_block = (self.device.max_shared_nbytes + RESERVED_NBYTES) // RING_BLOCKS
        groups = (of_block - RESERVED_NBYTES - sums - TICKET_NBYTES) // self._group_nbytes
        return groups if groups >= RING_GROUPS else 0

    @property
    def _group_nbytes(self) -> int:
        """Return the bytes of a group: RING_ROWS vectors a thread, shared by the arrays read."""
        n_rows = RING_ROWS // len(self.read) * len(self.read)
        return n_rows * THREADS * self.width * self.t.itemsize

    def _cached_rows(self, matrix: Matrix, n_parts: int, ring: int) -> int:
        """Return how many of a thread's last rows L2 is asked to keep for the second pass.

        matrix: the array in tiles. n_parts: of a tile. ring: groups of rows in shared memory, 0
        without. With two arrays all of them beside rings, else none: rows that leave the cache
        first seem not to take the place of what earlier work has left there.
        """
        if len(self.read) > 1:
            return matrix.turns(n_parts) if ring else 0
        nbytes = CACHED_BESIDE_RINGS if ring else CACHED_NBYTES
        return nbytes // (matrix.slots(n_parts) * VEC_NBYTES)

    def _tile(self, channels: Channels) -> int:
        """Return the channels of a tile: rows of about TILE_NBYTES, in whole vectors, or all."""
        columns = min(THREADS, TILE_NBYTES // self.t.itemsize)
        channels_of_tile = max(1, columns // channels.length)
        return min(channels.n, align_up(channels_of_tile, self._vectors(channels)))

    def _vectors(self, channels: Channels) -> int:
        """Return the fewest channels whose part of a row is a whole number of vectors."""
        return self.width // math.gcd(channels.length, self.width)

    # ---- launches --------------------------------------------------------------------------------

    def _schedule(
        self,
        symbol: str,
        blocks: int,
        n_channels: int,
        layout: np.void,
        work: Work,
        shared_nbytes: int = 0,
    ) -> Plan:
        """Plan launches of both passes over the parts of all tiles, with their scratch memory.

        symbol: the kernel. blocks: of a multiprocessor. n_channels: in all. layout: the struct
        Pieces or Columns. work: tiles and their parts. shared_nbytes: of the ring of a block; then
        blocks also list the parts that they have summed, in n_parts numbers.
        """
        scratch = ScratchMemory()
        arrays = self._scratch(scratch, n_channels, work)
        n_parts = min(work.n_tiles, MAX_TILES) * work.n_parts if shared_nbytes else 0
        more = (scratch.take(n_parts, np.uint32),) if n_parts else ()
        launches = tuple(
            self._launch(symbol, config, layout, *arrays, *more, schedule)
            for config, schedule in schedules(
                blocks * self.device.multiprocessors, work, shared_nbytes
            )
        )
        return scratch.plan(*launches)

    def _scratch(self, scratch: ScratchMemory, n_channels: int, work: Work) -> tuple[Scratch, ...]:
        """Take scratch memory of a launch's `work`: (partial sums, coefficients, counters).

        Partial sums of each channel and part, and coefficients of each of n_channels. The counters:
        one that hands out items, two for each tile (parts summed, parts applied), and one for each
        group of parts, where parts are merged in groups.
        """
        n_groups = min(work.n_tiles, MAX_TILES) * work.n_groups if work.group_parts > 1 else 0
        counters = scratch.zeros(1 + 2 * MAX_TILES + n_groups, np.uint32)
        accumulator = computed_in(self.t)
        n_partials = n_channels * work.n_parts * self.n_fields if work.sums else 0
        partials = scratch.take(n_partials, accumulator)
        coefficients = scratch.take(COEFFICIENTS * n_channels if work.sums else 0, accumulator)
        return partials, coefficients, counters

    def _launch(self, symbol: str, config: Config, *layout: object) -> Launch:
        """Return a launch of `symbol`; layout: its arguments between the options and of_relu."""
        args = (*self.arrays, self._halves, *self.options, *layout, *self.of_relu)
        binding = slots(T=self.t, RELU=1) if self.relu else slots(T=self.t)
        return Launch(symbol, config, args, binding)

    @property
    def _halves(self) -> np.void:
        """Return the struct Halves: which of scale and statistics have a 2-byte type."""
        _, scale, statistics = (t.itemsize == 2 for t in self.types)
        return by_value(Halves, scale=scale, statistics=statistics)


def _rounds(nbytes: int) -> int:
    """Return how many parts each block has one after the other, of an array in columns."""
    return 1 if nbytes <= COLUMNS_NBYTES else 2


def _group_parts(n_parts: int, n_channels: int) -> int:
    """Return how many parts of a tile are merged to a group first; 1: no groups are needed.

    n_channels: of a tile. With groups, there are about as many as a group has parts.
    """
    few = n_parts <= MERGED_PARTS * (THREADS // n_channels)  # these threads share a channel's parts
    return 1 if few else math.isqrt(n_parts)


def pieces(channels: Channels, width: int, span: int, threads: int) -> np.void:
    """Return the struct Pieces: how a thread steps through a channel of (outer, n, length).

    A piece is `length` neighbouring elements of the channel, and a slot `width` of them. From one
    slot a thread goes on to the slot `threads` later: by `elements_on` elements, and by `wrap` more
    where that leaves the piece. `span` is how many slots a block's part of the channel has.
    """
    slots_of_piece = max(1, channels.length // width)
    pitch = channels.n * channels.length  # elements from a piece to the channel's next
    pieces_on, slots_on = divmod(threads, slots_of_piece)
    fields = {
        "n_channels": channels.n,
        "length": channels.length,
        "n_slots": channels.elements // width,
        "span": span,
        "slots_on": slots_on,
        "elements_on": pieces_on * pitch + slots_on * width,
        "wrap": pitch - slots_of_piece * width,
    }
    return by_value(Pieces, slots=divisor(slots_of_piece), **fields)


def schedules(most: int, work: Work, shared_nbytes: int = 0) -> Iterator[tuple[Config, np.void]]:
    """Yield launches of at most MAX_TILES tiles, each with its Schedule.

    most: blocks that run at a time. work: all tiles and their parts. shared_nbytes: shared memory
    of a block. A launch sums its first `lag` items before it applies one: all n_parts of a tile and
    one more for each block, so that a tile's sums are usually complete when its first part is to be
    applied.
    """
    if min(work.n_tiles, MAX_TILES) * work.n_parts > MAX_ITEMS or work.n_tiles > MAX_ITEMS:
        raise LaunchError(f"{work.n_tiles} tiles of {work.n_parts} parts")
    for first in range(0, work.n_tiles, MAX_TILES):
        n_items = min(MAX_TILES, work.n_tiles - first) * work.n_parts
        grid = min(n_items, most)
        schedule = by_value(
            Schedule,
            first_tile=first,
            n_items=n_items,
            n_parts=work.n_parts,
            group_parts=work.group_parts,
            lag=min(n_items, work.n_parts + grid),
            sums=work.sums,
            applies=work.applies,
        )
        yield Config((grid,), (THREADS,), shared_nbytes), schedule
