# SPDX-License-Identifier: MIT
"""Which elements a guard measures: of small arrays all, of large ones a sample.

A group's runs are cut into pieces, its elements of so many tiles. Where not all are measured, one
of every `stride` pieces is, drawn by a hash of its number: the same ones in each call.
"""

from __future__ import annotations

from typing import NamedTuple

from ...facts import WARP
from .facts import TILE

Grouping = tuple[int, int, int]  # (outer, groups, inner): element [a, c, b] belongs to group c

MOST_TILES = 2  # tiles of a piece
LEAST, MOST = 64, 512  # elements of a group that are measured
FEW = 1 << 16  # elements that are measured in all, within these limits


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
    lanes: int  # threads of a warp that measure one group


def sample_of(n: int, grouping: Grouping | None, whole: bool) -> Sample:
    """Return the sample of n >= 1 elements: LEAST to MOST of each group, with `whole` all.

    grouping: (outer, groups, inner), the array's extents around its groups; None makes groups of
    neighbouring elements.
    """
    outer, groups, inner = grouping or _runs(n)
    run_tiles = _most_tiles(inner)
    tiles = min(_power_of_2(run_tiles), MOST_TILES)
    per_run = -(-run_tiles // tiles)  # divided, rounded up
    wanted = min(max(LEAST, FEW // groups), MOST)  # elements of a group
    wanted_pieces = -(-wanted // min(inner, tiles * TILE))
    stride = 1 if whole else max(outer * per_run // wanted_pieces, 1)
    pieces = outer * per_run // stride
    lanes = min(_power_of_2(pieces * tiles), WARP)
    return Sample(groups, inner, stride, per_run, pieces, tiles, lanes)


def _power_of_2(n: int) -> int:
    """Return the least power of 2 that is at least n >= 1."""
    return 1 << (n - 1).bit_length()


def _runs(n: int) -> Grouping:
    """Return (1, runs, elements of a run) of n elements without a grouping.

    A run has MOST elements, or more, so that there are at most FEW / LEAST = 1,024 runs.
    """
    run = max(MOST, TILE * -(-LEAST * n // (TILE * FEW)))
    return 1, -(-n // run), min(n, run)


def _most_tiles(run: int) -> int:
    """Return how many tiles a run of so many elements touches at most.

    Runs of whole tiles begin with a tile; others may begin with the last element of one.
    """
    return run // TILE if run % TILE == 0 else (run + 2 * TILE - 2) // TILE
