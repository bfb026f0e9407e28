# SPDX-License-Identifier: MIT
"""Which elements a guard measures: of small arrays all, of large ones a sample.

A group's runs are cut into pieces, its elements of so many tiles. Where not all are measured, one
of every `stride` pieces is, drawn by a hash of its number: the same ones in each call.
"""

from __future__ import annotations

from typing import NamedTuple

from ...facts import WARP
from .facts import TILE

Grouping = tuple[int, int, int]

MOST_TILES = 2  # of a piece
LEAST, MOST = 64, 512  # elements of a group
FEW = 1 << 16  # elements in all, within these limits


class Sample(NamedTuple):
    """Pieces that are measured of elements (outer, groups, inner): `pieces` of each group.

    A group has `outer` runs of `inner` elements, a run `per_run` pieces, a piece `tiles` tiles; one
    of every `stride` pieces is measured.
    """

    groups: int
    inner: int
    stride: int
    per_run: int
    pieces: int
    tiles: int
    lanes: int  # of a warp, for a group


def sample_of(n: int, grouping: Grouping | None, whole: bool) -> Sample:
    """The sample of n elements, at least one."""
    outer, groups, inner = grouping or _runs(n)
    of_run = _most_tiles(inner)
    tiles = min(1 << (of_run - 1).bit_length(), MOST_TILES)
    per_run = -(-of_run // tiles)
    there, wanted = outer * per_run, min(max(LEAST, FEW // groups), MOST)
    stride = 1 if whole else max(there // -(-wanted // min(inner, tiles * TILE)), 1)
    pieces = there // stride
    lanes = min(1 << (pieces * tiles - 1).bit_length(), WARP)
    return Sample(groups, inner, stride, per_run, pieces, tiles, lanes)


def _runs(n: int) -> Grouping:
    """The grouping of n elements that have none: (1, runs, elements of a run)."""
    run = max(MOST, TILE * -(-LEAST * n // (TILE * FEW)))
    return 1, -(-n // run), min(n, run)


def _most_tiles(run: int) -> int:
    """Tiles that a run touches at most; a run of whole tiles begins with a tile."""
    return run // TILE if run % TILE == 0 else (run + 2 * TILE - 2) // TILE
