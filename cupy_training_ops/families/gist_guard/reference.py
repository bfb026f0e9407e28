# SPDX-License-Identifier: MIT
"""The encoder that measures its own error, in NumPy. Formulas: the class in `operators.py`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ...dtypes import FLOAT32, FLOAT64, HostArray
from ..gist.reference import gist_pack_msfp15_decoder, gist_pack_msfp15_encoder
from .facts import HALF, HASH, MOST_RATIO, TILE
from .sample import Grouping, Sample, sample_of

AT_ONCE = 1 << 18  # elements: their float64 stay in the cache


class Sums(NamedTuple):
    """Sums of squares over measured elements.

    error: (groups,), of x - decoded. tiles: of x - mean of its tile, over all groups. deviation:
    (groups,), of x - mean of its group.
    """

    error: HostArray
    tiles: float
    deviation: HostArray


def gist_guarded_msfp15_encoder(
    x: HostArray,
    *,
    keep_nonfinite: bool,
    grouping: Grouping | None,
    whole: bool,
) -> tuple[HostArray, HostArray]:
    """Return MSFP15 codes of x, and the guard, float32 (4,), that says how far they are off.

    guard: sums of squares of x - decoded, x - its tile's mean, x - its group's mean, in units of
    4^(E - 127), E the largest of a tile; and the worst error / deviation of a group. Without
    grouping the last two are 0; with a tile that is not finite it is (inf, 0, 0, inf).
    keep_nonfinite: tiles with infinities or NaN have codes for them, else zeros. grouping:
    lengths (outer, groups, inner) of x, or None. whole: measure every element, not a sample.
    """
    codes = gist_pack_msfp15_encoder(x, keep_nonfinite=True, keep_sign=True)
    exponents = np.packbits(codes.ravel() >> 7, bitorder="little")
    top = int(exponents.max(initial=0))
    if top == 255 and not keep_nonfinite:
        codes.reshape(-1, TILE)[exponents == 255] = 0
    if top == 255:
        return codes, np.array([math.inf, 0, 0, math.inf], FLOAT32)
    if not x.size:
        return codes, np.zeros(4, FLOAT32)
    sums = _sums(x.ravel(), codes.reshape(-1, TILE), sample_of(x.size, grouping, whole))
    return codes, _guard(sums, grouping is not None, 4.0 ** (127 - top))


def _guard(sums: Sums, grouped: bool, unit: float) -> HostArray:
    """Return the guard: sums of error, tiles and deviation, times `unit`, and the worst ratio.

    The last is that of a group's error over deviation. grouped: else the last two are 0.
    """
    deviation = sums.deviation.sum() if grouped else 0.0
    squares = np.array([sums.error.sum(), sums.tiles, deviation]) * unit
    return np.append(squares, _worst(sums) if grouped else 0.0).astype(FLOAT32)


def _worst(sums: Sums) -> float:
    """Return the largest error / deviation of a group, infinite from MOST_RATIO on."""
    error, deviation = sums.error, sums.deviation
    ratio = np.divide(error, deviation, out=np.full(error.shape, math.inf), where=deviation > 0)
    worst = float(np.max(ratio, initial=0, where=error > 0))
    return worst if worst < MOST_RATIO else math.inf


def _sums(x: HostArray, codes: HostArray, sample: Sample) -> Sums:
    """Return the sums over all groups, measured AT_ONCE elements at a time, so as to fit a cache.

    x: flat. codes: of MSFP15, (tiles, 8). sample: which elements are measured.
    """
    pieces = max(AT_ONCE // (sample.tiles * TILE), 1)
    groups = max(pieces // sample.pieces, 1)
    parts = [
        _of_groups(x, codes, sample, np.arange(c, min(c + groups, sample.groups)), pieces)
        for c in range(0, sample.groups, groups)
    ]
    errors, tiles, deviations = zip(*parts, strict=True)
    return Sums(np.concatenate(errors), math.fsum(tiles), np.concatenate(deviations))


def _of_groups(
    x: HostArray, codes: HostArray, sample: Sample, groups: HostArray, at_once: int
) -> Sums:
    """Return the sums of the groups with these numbers, `at_once` pieces of each at a time.

    codes: of MSFP15, (tiles, 8). sample: which pieces are measured. A group's deviation is sum(d^2)
    - sum(d)^2 / n, d the distances from the group's first element.
    """
    origin = x[groups * sample.inner].astype(FLOAT64)[:, None]
    error, n, total, squares = np.zeros((4, groups.size))
    tiles = 0.0
    for k in range(0, sample.pieces, at_once):
        # at: elements' places in x, (groups, n), whole tiles; there: True for the group's own.
        at, there = _elements(sample, groups, np.arange(k, min(k + at_once, sample.pieces)), x.size)
        values, own = x[at].astype(FLOAT64), at[:, ::TILE] // TILE
        off = np.where(there, values - _decode(codes, own, x.dtype), 0)
        distance = np.where(there, values - origin, 0)
        error += np.square(off).sum(1)
        tiles += float(np.square(np.where(there, values - _means(x, own), 0)).sum())
        n += there.sum(1)
        total += distance.sum(1)
        squares += np.square(distance).sum(1)
    return Sums(error, tiles, np.maximum(squares - total**2 / np.maximum(n, 1), 0))


def _elements(
    sample: Sample, groups: HostArray, k: HostArray, n: int
) -> tuple[HostArray, HostArray]:
    """Return places in x (n elements) of measured pieces; and True if one is its group's own.

    sample: extents, and pieces of a group. groups, k: numbers of groups, and of pieces of each.
    Both results have shape (groups, elements), each piece as whole tiles: x is (runs, groups,
    inner), and a run may begin within a tile. Piece k is one of pieces k stride to (k + 1) stride -
    1 of its group, drawn by a hash.
    """
    numbers = (groups[:, None] * sample.pieces + k).astype(np.uint32)
    hashed = (numbers * np.uint32(HASH) >> HALF).astype(np.int64)
    # A hash is the upper HALF = 16 bits of a uint32 product, so that hash * stride >> HALF is in
    # [0, stride).
    piece = k * sample.stride + (hashed * sample.stride >> HALF)
    run, part = np.divmod(piece, sample.per_run)
    begin = (run * sample.groups + groups[:, None]) * sample.inner
    first = (begin // TILE + part * sample.tiles) * TILE
    at = first[..., None] + np.arange(sample.tiles * TILE)
    end = np.minimum(begin + sample.inner, n)[..., None]
    there = (at >= begin[..., None]) & (at < end)
    flat = groups.size, -1
    return np.minimum(at, n - 1).reshape(flat), there.reshape(flat)


def _decode(codes: HostArray, tiles: HostArray, dtype: np.dtype) -> HostArray:
    """Return decoded elements in float64: `tiles`, numbers (groups, n), give (groups, n * TILE).

    codes: of all tiles, (tiles, 8). dtype: of the elements that they encode. A tile that is asked
    for several times is decoded once.
    """
    once, where = np.unique(tiles, return_inverse=True)
    shape = (once.size, TILE)
    values = gist_pack_msfp15_decoder(codes[once], to=dtype, shape=shape, keep_nonfinite=False)
    decoded: HostArray = values.astype(FLOAT64)[where].reshape(len(tiles), -1)
    return decoded


def _means(x: HostArray, tiles: HostArray) -> HostArray:
    """Return each element's tile mean: `tiles`, numbers (groups, n), give (groups, n * TILE).

    The last tile of x may have fewer elements.
    """
    once, where = np.unique(tiles, return_inverse=True)
    at = once[:, None] * TILE + np.arange(TILE)
    there = at < x.size
    values = x[np.minimum(at, x.size - 1)].astype(FLOAT64)
    first = values[:, :1]
    means = first[:, 0] + np.where(there, values - first, 0).sum(1) / there.sum(1)
    of_elements: HostArray = means[where].repeat(TILE).reshape(len(tiles), -1)
    return of_elements
