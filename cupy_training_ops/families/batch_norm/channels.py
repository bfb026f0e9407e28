# SPDX-License-Identifier: MIT
"""Arrays as channels, and as matrices whose columns are channels; see batch_norm/columns.cuh."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...declare.schema import Shape, Spec
from ...dtypes import Dtype
from ...plan import by_value, ceil_div
from .facts import THREADS, Columns

PIECE_NBYTES = 64  # from which on neighbouring elements are walked as they lie


@dataclass(frozen=True)
class Channels:
    """An array (outer, n, length) whose channels are along its middle."""

    outer: int
    n: int
    length: int

    @classmethod
    def of(cls, shape: Shape) -> Channels:
        """Channels along the second axis; an array of rank 1 is one channel."""
        if len(shape) == 1:
            return cls(1, 1, shape[0])
        if shape[1] == 1:
            return cls(1, 1, math.prod(shape))
        return cls(shape[0], shape[1], math.prod(shape[2:]))

    @classmethod
    def of_arrays(cls, arrays: Sequence[Spec]) -> Channels:
        """Arrays of one shape and layout as they lie in memory: (rows, C, 1) with channels last."""
        spec = arrays[0]
        if not any(array.channels_last for array in arrays):
            return cls.of(spec.shape)
        channels = spec.shape[1]
        return cls.of((spec.size // max(1, channels), channels))

    @property
    def elements(self) -> int:
        """Elements of a channel."""
        return self.outer * self.length

    def fit_pieces(self, t: Dtype) -> bool:
        """Return True if a channel's neighbours are many enough to be read as they lie."""
        return self.n == 1 or self.length * t.itemsize >= PIECE_NBYTES


@dataclass(frozen=True)
class Matrix:
    """Channels in tiles of so many, `width` columns of a thread."""

    channels: Channels
    tile: int
    width: int

    @property
    def n_tiles(self) -> int:
        """Number of tiles."""
        return ceil_div(self.channels.n, self.tile)

    @property
    def threads(self) -> int:
        """Threads that share a row of a tile."""
        return ceil_div(self.tile * self.channels.length, self.width)

    @property
    def is_whole(self) -> bool:
        """Return True if a thread's columns are all its tile's, and rows begin alike."""
        columns = self.channels.n * self.channels.length, self.tile * self.channels.length
        return all(n % self.width == 0 for n in columns)

    @property
    def row_elements(self) -> int:
        """Elements of a row of a tile."""
        return self.tile * self.channels.length

    def turns(self, n_parts: int = 1) -> int:
        """Rows of a thread, where a tile has `n_parts`."""
        return ceil_div(self.channels.outer, n_parts * (THREADS // self.threads))

    def slots(self, n_parts: int) -> int:
        """Slots of a row of all threads."""
        return n_parts * self.n_tiles * (THREADS // self.threads) * self.threads

    def layout(self, n_parts: int, ring: int, cached: int, aligned: bool) -> np.void:
        """The struct Columns."""
        return by_value(
            Columns,
            n_rows=self.channels.outer,
            n_channels=self.channels.n,
            n_parts=n_parts,
            turns=self.turns(n_parts),
            length=self.channels.length,
            channels=self.tile,
            width=self.threads,
            ring=ring,
            cached=cached,
            aligned=aligned,
        )
