# SPDX-License-Identifier: MIT
"""Where the parts of a sparse code begin. Its bytes are drawn in `operators.py`."""

from __future__ import annotations

from typing import NamedTuple

from .facts import GROUP_NBYTES, HEAD_NBYTES, TILE_NBYTES


class Layout(NamedTuple):
    """Where the parts of a code begin, in bytes; `most` is what the longest code takes.

    | head | starts: where each tile's values begin | mask | values of tile 0 | of tile 1 | ...
    """

    tiles: int
    mask: int
    values: int
    plain: int  # bytes of a code that has the elements as they are
    most: int

    @property
    def always_plain(self) -> bool:
        """True if the elements as they are take no more than a code without a value."""
        return self.plain <= self.values

    @property
    def least(self) -> int:
        """Bytes of the shortest code."""
        return min(self.plain, self.values)


def layout(n: int, itemsize: int, group: int) -> Layout:
    """The layout of n elements whose values are coded by groups of so many."""
    tile = TILE_NBYTES // itemsize
    tiles = -(-n // tile)
    mask = HEAD_NBYTES + 16 * -(-8 * tiles // 16)
    values = mask + 16 * -(-n // 128)
    groups = n // tile * -(-tile // group) + -(-(n % tile) // group)
    plain = HEAD_NBYTES + n * itemsize if n else 0
    return Layout(tiles, mask, values, plain, min(plain, values + GROUP_NBYTES * groups))
