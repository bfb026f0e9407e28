# SPDX-License-Identifier: MIT
"""Large arrays on the CPU provider are computed in pieces, so that temporaries stay in the cache.

X      | 0 .. 7 | 8 .. 15 | ...      a tile: elements that are computed independently of others
codes  |   0    |    1    | ...      (here of GistPack1Encoder); a piece: several tiles
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..declare.schema import Input
from ..dtypes import HostArray
from ..plan import ceil_div
from .layout import Order
from .prepared import Result

PIECE = 32_768  # elements: eight float64 arrays of so many take 2 MiB
Values = Sequence[Any]  # arguments of a NumPy function


class Part(NamedTuple):
    """An array as rows of tiles."""

    matrix: HostArray  # a view of rank 2
    tile: int  # elements of a tile
    repeats: bool  # its one row is broadcast

    def piece(self, rows: slice, tiles: slice) -> HostArray:
        """Return a view of some rows and tiles, by index; the last tile may be shorter."""
        columns = slice(self.tile * tiles.start, self.tile * tiles.stop)
        return self.matrix[slice(None) if self.repeats else rows, columns]

    @property
    def n_tiles(self) -> int:
        """Tiles of a row."""
        return ceil_div(self.matrix.shape[1], self.tile)


class Pieces:
    """Splits the arrays of a call into pieces, each of the same tiles of every array.

    arrays: for each input, True if it is split. tiles: elements of a tile, for each input, then
    each result. row: index of the input that is broadcast along the others' last dimension, or -1.
    """

    def __init__(
        self,
        inputs: Sequence[Input],
        results: Sequence[Result],
        tiles: Mapping[str, int],
        row: str = "",
        order: Order | None = None,
    ) -> None:
        """inputs: as declared. results: of the call. tiles: elements of a tile by name of an input
        or output; 1 for others. row: name of the input of rank 1 that is broadcast along the
        others' last dimension, or "". order: of dimensions in memory; None: C-contiguous."""
        self.order = order
        self.arrays = tuple(item.memory == "device" and not item.not_accessed for item in inputs)
        names = (*(item.name for item in inputs), *(result.name for result in results))
        self.tiles = tuple(tiles.get(name, 1) for name in names)
        self.row = next((place for place, name in enumerate(names) if name == row), -1)
        self.most = max(1, PIECE // max(self.tiles))  # tiles of a piece
        keep_freed_memory()

    def __call__(self, inputs: Values, results: Values) -> Iterator[tuple[Values, Values]]:
        """Yield (inputs, results) of each piece; values that are no arrays are in each."""
        values = (*inputs, *results)
        parts = self._parts(values, len(inputs))
        n_rows = max(len(part.matrix) for part in parts.values())
        n_tiles = max(part.n_tiles for part in parts.values())
        for block in blocks(n_rows, n_tiles, self.most):
            piece = [
                parts[place].piece(*block) if place in parts else value
                for place, value in enumerate(values)
            ]
            yield piece[: len(inputs)], piece[len(inputs) :]

    def _parts(self, values: Values, n_inputs: int) -> dict[int, Part]:
        """Return {index: Part} of the arrays to be split; values: inputs, of which there are
        n_inputs, then results.

        A Part is one row, or rows as long as the broadcast input if there is one.
        """
        row = values[self.row] if self.row >= 0 else None
        width = -1 if row is None else row.size
        return {
            place: Part(
                self._in_memory(value).reshape(-1 if row is not None else 1, width),
                tile,
                value is row,
            )
            for place, (value, tile) in enumerate(zip(values, self.tiles, strict=True))
            if value is not None and (place >= n_inputs or self.arrays[place])
        }

    def _in_memory(self, array: HostArray) -> HostArray:
        """View an array with its dimensions in memory order, so that reshape copies nothing."""
        if self.order is None or array.ndim != len(self.order):
            return array
        return array.transpose(self.order)


def blocks(n_rows: int, n_tiles: int, most: int) -> Iterator[tuple[slice, slice]]:
    """Yield (slice of rows, slice of tiles) of pieces of at most `most` tiles of n_rows x n_tiles.

    A piece is some whole rows of n_tiles tiles, or a part of one: blocks(2, 5, 3) yields tiles 0-2
    and 3-4 of row 0, then of row 1.
    """
    tiles = min(n_tiles, most)
    rows = most // tiles
    for row in range(0, n_rows, rows):
        for tile in range(0, n_tiles, tiles):
            yield slice(row, row + rows), slice(tile, tile + tiles)


@functools.cache
def keep_freed_memory() -> None:
    """Make glibc reuse freed memory instead of returning it to the system.

    It returns blocks above 128 KiB until a block as large as this one was freed. Clearing new pages
    took longer than the arithmetic: Gelu 60 ns an element instead of 26.
    """
    np.empty(2**25 - 2**16, np.uint8)
