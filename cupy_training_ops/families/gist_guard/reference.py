# SPDX-License-Identifier: MIT
"""The encoder that measures its own error, in NumPy. Formulas: the class in `operators.py`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...dtypes import FLOAT32, FLOAT64, HostArray
from ..gist.facts import BOX as TILE
from ..gist.reference import gist_pack_msfp15_decoder, gist_pack_msfp15_encoder

Grouping = tuple[int, int, int]
Slices = tuple[slice, ...]

PIECE = 1 << 16  # elements: their float64 stay in the cache
MOST = 2.0**32  # a ratio that counts as finite is below it


class Sums(NamedTuple):
    """Squares of what the code lost and of distances from the mean; of each group, or in all."""

    error: HostArray
    deviation: HostArray


def gist_guarded_msfp15_encoder(
    x: HostArray, *, keep_nonfinite: bool = False, grouping: Grouping | None = None
) -> tuple[HostArray, HostArray]:
    codes = gist_pack_msfp15_encoder(x, keep_nonfinite=True, keep_sign=True)
    exponents = np.packbits(codes.ravel() >> 7, bitorder="little")
    top = int(exponents.max(initial=0))
    if top == 255 and not keep_nonfinite:
        codes.reshape(-1, TILE)[exponents == 255] = 0
    if top == 255:
        return codes, np.array([math.inf, 0, 0, math.inf], FLOAT32)
    return codes, _guard(x.ravel(), codes, grouping, 4.0 ** (127 - top))


def _guard(x: HostArray, codes: HostArray, grouping: Grouping | None, unit: float) -> HostArray:
    if not x.size:
        return np.zeros(4, FLOAT32)
    q = gist_pack_msfp15_decoder(codes, to=x.dtype, shape=x.shape)
    whole = x.size - x.size % TILE
    tiles = _sums(x[:whole], q[:whole], (1, whole // TILE, TILE))
    rest = _sums(x[whole:], q[whole:], (1, 1, x.size - whole))
    error, deviation = (tiles[i].sum() + rest[i].sum() for i in (0, 1))
    groups = _sums(x, q, grouping) if grouping else Sums(np.zeros(1), np.zeros(1))
    sums = np.array([error, deviation, groups.deviation.sum()])
    return np.append(sums * unit, _worst(groups)).astype(FLOAT32)


def _worst(groups: Sums) -> float:
    error, deviation = groups
    ratio = np.divide(error, deviation, out=np.full(error.shape, math.inf), where=deviation > 0)
    worst = float(np.max(ratio, initial=0, where=error > 0))
    return worst if worst < MOST else math.inf


def _sums(x: HostArray, q: HostArray, grouping: Grouping) -> Sums:
    """Of each group, relative to its first element."""
    outer, groups, inner = grouping
    x, q = x.reshape(grouping), q.reshape(grouping)
    sums = np.zeros((3, groups))
    first = x[:1, :, :1].astype(FLOAT64)
    for piece in _pieces(grouping):
        distance = x[piece].astype(FLOAT64)
        error = distance - q[piece]
        distance -= first[:, piece[1]]
        some = sums[:, piece[1]]
        some[0] += np.square(error, out=error).sum((0, 2))
        some[1] += distance.sum((0, 2))
        some[2] += np.square(distance, out=distance).sum((0, 2))
    n = max(outer * inner, 1)
    return Sums(sums[0], np.maximum(sums[2] - sums[1] ** 2 / n, 0))


def _pieces(grouping: Grouping) -> Iterator[Slices]:
    """Boxes of at most so many elements, of as many neighbouring ones as there can be."""
    outer, groups, inner = grouping
    b = min(inner, PIECE) or 1
    c = min(groups, PIECE // b) or 1
    a = min(outer, PIECE // (b * c)) or 1
    for i in range(0, outer, a):
        for j in range(0, groups, c):
            for k in range(0, inner, b):
                yield slice(i, i + a), slice(j, j + c), slice(k, k + b)
