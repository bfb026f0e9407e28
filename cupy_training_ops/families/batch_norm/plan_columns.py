# SPDX-License-Identifier: MIT
"""Channels in columns of a matrix, and how threads walk its rows; see batch_norm/columns.cuh."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...plan import by_value, ceil_div
from .channels import Channels
from .facts import THREADS, Columns


@dataclass(frozen=True)
class Matrix:
    """Channels in tiles of so many, `width` columns of a thread."""

    channels: Channels
    tile: int
    width: int

    @property
    def n_tiles(self) -> int:
        """Tiles."""
        return ceil_div(self.channels.n, self.tile)

    @property
    def threads(self) -> int:
        """Threads that share a row of a tile."""
        return ceil_div(self.tile * self.channels.length, self.width)

    @property
    def is_whole(self) -> bool:
        """Whether all columns of a thread are its tile's, and all rows begin like the first."""
        columns = self.channels.n * self.channels.length, self.tile * self.channels.length
        return all(n % self.width == 0 for n in columns)

    @property
    def row_elements(self) -> int:
        """Elements of a row of a tile."""
        return self.tile * self.channels.length

    def turns(self, n_parts: int = 1) -> int:
        """Rows of a thread, where a tile has so many parts."""
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
