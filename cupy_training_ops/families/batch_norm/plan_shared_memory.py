# SPDX-License-Identifier: MIT
"""Tiles of channels that fit into a block's shared memory; see batch_norm/staged_tiles.cuh.

An array is a matrix (outer, n * length): a channel is `length` columns, a tile some channels, a
slot neighbouring columns of a row, which a thread copies as one vector of 16 or 8 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...declare.schema import Shape, Spec
from ...facts import WARP
from ...plan import VEC_NBYTES, Config, Device, align_up, by_value, ceil_div
from .facts import COEFFICIENTS, MOST_GROUPS, STAGED_ROWS, STAGED_THREADS, StagedTiles

RESERVED_NBYTES = 1024  # of shared memory, by the system for each block
ROW_NBYTES = 256  # of a tile, at least, where as many channels fit
MOST_ROWS = 2  # rows of a thread, at most, for each in shared memory; the others are read again
MOST_BLOCKS = 2  # that share a multiprocessor
MOST_TILES = 4  # that a ring has room for, at most
GROUPS = 4  # of the copies of a tile, where there is room for one tile alone
SLOT_NBYTES = (VEC_NBYTES, VEC_NBYTES // 2)


@dataclass(frozen=True)
class Channels:
    """An array as (outer, n, length), where [:, c, :] are the elements of channel c of n."""

    outer: int
    n: int
    length: int

    @classmethod
    def of(cls, shape: Shape) -> Channels:
        """Return the channels along the second axis; an array of rank 1 is one channel."""
        if len(shape) == 1:
            return cls(1, 1, shape[0])
        if shape[1] == 1:
            return cls(1, 1, math.prod(shape))
        return cls(shape[0], shape[1], math.prod(shape[2:]))

    @classmethod
    def of_arrays(cls, arrays: Sequence[Spec]) -> Channels:
        """Return the channels of arrays of one shape and layout; channels last: (rows, C, 1)."""
        spec = arrays[0]
        if not any(array.channels_last for array in arrays):
            return cls.of(spec.shape)
        channels = spec.shape[1]
        return cls.of((spec.size // max(1, channels), channels))

    @property
    def elements(self) -> int:
        """Elements of a channel."""
        return self.outer * self.length


@dataclass(frozen=True)
class Ring:
    """A thread's rows in shared memory: a circular buffer, copied to a group of rows at a time."""

    rows: int  # that the buffer has room for
    group_rows: int  # rows of a group
    tile_groups: int  # groups of a tile
    groups: int  # groups that the buffer has room for
    step: int  # rows from the first one of a tile to the first one of the next


@dataclass(frozen=True)
class Tiles:
    """One way to divide arrays into tiles, and if it fits; `fit_tiles` tries several.

    A block has a tile at a time; `width` of its threads share a row.
    """

    device: Device
    channels: Channels
    n_arrays: int  # that are read
    itemsize: int  # bytes of an element
    computed_itemsize: int  # bytes of an accumulator
    n_fields: int  # numbers of a partial sum
    slot_nbytes: int  # 16 or 8
    tile_channels: int
    blocks: int  # that share a multiprocessor

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return STAGED_THREADS // self.blocks // WARP * WARP

    @property
    def columns(self) -> int:
        """Elements of a slot."""
        return self.slot_nbytes // self.itemsize

    @property
    def width(self) -> int:
        """Threads that share a row."""
        return self.tile_channels * self.channels.length // self.columns

    @property
    def height(self) -> int:
        """Rows that the threads of a block have at a time."""
        return self.threads // self.width

    @property
    def rows(self) -> int:
        """Rows of a tile that a thread has."""
        return ceil_div(self.channels.outer, self.height)

    @property
    def depth(self) -> int:
        """Rows of a tile that a thread has in shared memory: all, or as many as fit."""
        return min(self.rows, self._most_rows)

    @property
    def ring(self) -> Ring:
        """Return the ring: the rows of a tile in shared memory, and of next ones where they fit.

        It takes the smallest groups that make up a tile and, MOST_GROUPS at most, more than one
        tile; if there are none, four groups of one tile.
        """
        least = STAGED_ROWS // self.n_arrays
        most = min(self._most_rows, MOST_TILES * self.depth)
        for group_rows in range(least, self.depth + 1, least):
            groups, tile_groups = most // group_rows, self.depth // group_rows
            if self.depth % group_rows == 0 and tile_groups < groups <= MOST_GROUPS:
                rows = groups * group_rows
                return Ring(rows, group_rows, tile_groups, groups, self.depth % rows)
        group_rows = align_up(ceil_div(self.depth, GROUPS), least)
        return Ring(self.depth, group_rows, GROUPS, GROUPS, 0)

    @property
    def _most_rows(self) -> int:
        """Rows of a thread that a block has shared memory for."""
        of_block = (self.device.max_shared_nbytes + RESERVED_NBYTES) // self.blocks
        return (of_block - RESERVED_NBYTES - self._sums_nbytes) // self._row_nbytes

    @property
    def _row_nbytes(self) -> int:
        """Bytes of one slot for each thread and array."""
        return self.n_arrays * self.width * self.height * self.slot_nbytes

    @property
    def n_tiles(self) -> int:
        return ceil_div(self.channels.n, self.tile_channels)

    @property
    def shared_nbytes(self) -> int:
        """Bytes of a block's shared memory: the slots, and what the kernel's `Shared` takes."""
        return self._sums_nbytes + self.ring.rows * self._row_nbytes

    @property
    def _sums_nbytes(self) -> int:
        """Bytes of the struct Shared of staged_tiles.cuh."""
        # Two copies of two inputs and a reference, coefficients, totals.
        of_channel = 2 * (2 + 1) + COEFFICIENTS + self.n_fields
        sums = 2 * self.n_fields * self.width * self.height + of_channel * self.tile_channels
        return sums * self.computed_itemsize

    @property
    def occupies(self) -> bool:
        """Return True if there are tiles for at least half of the multiprocessors."""
        return 2 * self.n_tiles >= self.device.multiprocessors

    def fits(self, most_rows: int) -> bool:
        """Return True if shared memory has room for 1 / most_rows of a thread's rows, or more."""
        if self.width > self.threads or self.tile_channels > self.threads:
            return False
        return self.depth >= ceil_div(self.rows, most_rows)

    @property
    def config(self) -> Config:
        """Return the launch's grid, of blocks that go from tile to tile, and block."""
        grid = min(self.n_tiles, self.blocks * self.device.multiprocessors)
        return Config((grid,), (self.threads,), self.shared_nbytes)

    @property
    def argument(self) -> np.void:
        """Return the struct StagedTiles."""
        ring = self.ring
        return by_value(
            StagedTiles,
            n_channels=self.channels.n,
            n_rows=self.channels.outer,
            n_tiles=self.n_tiles,
            length=self.channels.length,
            tile_channels=self.tile_channels,
            width=self.width,
            staged_rows=self.depth,
            group_rows=ring.group_rows,
            tile_groups=ring.tile_groups,
            ring_groups=ring.groups,
            ring_rows=ring.rows,
            ring_step=ring.step,
        )

    @property
    def is_narrow(self) -> bool:
        """Return True if slots are narrower than a vector."""
        return self.slot_nbytes < VEC_NBYTES


def fit_tiles(
    device: Device,
    channels: Channels,
    n_arrays: int,
    itemsize: int,
    computed_itemsize: int,
    n_fields: int,
) -> Tiles | None:
    """Return tiles that fit into shared memory; None if none do that occupy half of the GPU.

    Of these, all rows are preferred to some, then wide slots, wide tiles, and two blocks. n_arrays
    are read; itemsize, computed_itemsize: bytes of an element and of an accumulator; n_fields:
    numbers of a partial sum.
    """
    array = (device, channels, n_arrays, itemsize, computed_itemsize, n_fields)
    for most_rows in dict.fromkeys((1, MOST_ROWS)):
        for slot_nbytes in SLOT_NBYTES:
            for tile_channels in _sizes(channels, itemsize, slot_nbytes // itemsize):
                for blocks in range(MOST_BLOCKS if most_rows == 1 else 1, 0, -1):
                    tiles = Tiles(*array, slot_nbytes, tile_channels, blocks)
                    if tiles.occupies and tiles.fits(most_rows):
                        return tiles
    return None


def _sizes(channels: Channels, itemsize: int, columns: int) -> Iterator[int]:
    """Yield how many channels a tile may have, in whole slots: ROW_NBYTES a row, then the fewest.

    itemsize: bytes of an element. columns: elements of a slot, which is to have two at least, of
    two channels at most.
    """
    row, length = channels.n * channels.length, channels.length
    if columns < 2 or row % columns or length < columns or channels.outer >= 2**31:
        return
    least = columns // math.gcd(length, columns)
    wide = align_up(ceil_div(ROW_NBYTES, length * itemsize), least)
    yield from (min(channels.n, n) for n in dict.fromkeys((wide, least)))
