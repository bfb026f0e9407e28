# SPDX-License-Identifier: MIT
"""Where the parts of a sparse code begin. Its bytes are drawn in `operators.py`."""

from __future__ import annotations

from typing import NamedTuple

from .facts import GROUP_NBYTES, HEAD_NBYTES, TILE_NBYTES


class Layout(NamedTuple):
    """The number of tiles of an array, and bytes at which the parts of its code begin.

    | head | starts: where each tile's values begin | mask | values of tile 0 | of tile 1 | ...

    `most`: bytes of the longest code.
    """

    tiles: int
    mask: int
    values: int
    plain: int  # bytes of a code that has the raw elements
    most: int

    @property
    def always_plain(self) -> bool:
        """Return True if raw elements take no more than a sparse code of zeros alone."""
        return self.plain <= self.values

    @property
    def least(self) -> int:
        """Return the bytes of the shortest code."""
        return min(self.plain, self.values)


def layout(n: int, itemsize: int, group: int) -> Layout:
    """Return the layout for n elements of `itemsize` bytes; `group` values take GROUP_NBYTES."""
    tile = TILE_NBYTES // itemsize  # elements
    tiles = -(-n // tile)  # divided, rounded up
    # Starts have 8 bytes a tile, the mask a bit an element, each in whole 16 bytes.
    mask = HEAD_NBYTES + 16 * -(-8 * tiles // 16)
    values = mask + 16 * -(-n // 128)
    # If all elements are values: groups of the full tiles, and of the last one.
    groups = n // tile * -(-tile // group) + -(-(n % tile) // group)
    plain = HEAD_NBYTES + n * itemsize if n else 0
    return Layout(tiles, mask, values, plain, min(plain, values + GROUP_NBYTES * groups))
