# SPDX-License-Identifier: MIT
"""Whether codes are good enough for who takes them: what an encoder measured beside its codes.

An error counts beside what a consumer sees: a layer norm of rows with mean 100 sees x - mean.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ..families.gist_guard.sample import Grouping
from ..stash.guards import GROUP, TILE

LARGEST, LEAST = 65504.0, 2.0**-6  # float16's steps are 2^-18 of the least, and smaller
MEANS = 4.0**2  # squared deviations that the means of features may be large


class Verdict(NamedTuple):
    """What of a guard's numbers is within its limit: of bools, or of bools on a device."""

    codes: Any  # for everyone
    features: Any  # where features are centred
    groups: Any  # where groups are normalised


def verdict(numbers: Any, guard: str, grouped: bool) -> Verdict:
    """Of what an encoder measured, or of float16 codes; NaN is beyond every limit."""
    if guard == "measured":
        error, tiles, groups, worst = numbers
        features, normalised = error <= TILE * groups, worst <= GROUP
        return Verdict(error <= TILE * tiles, grouped and features, grouped and normalised)
    largest, deviation, means = numbers
    in_range = (largest >= LEAST) & (largest <= LARGEST)
    return Verdict(in_range & (means <= MEANS * deviation), True, True)


def grouping_of(
    shape: tuple[int, ...], order: tuple[int, ...], groups: tuple[int, ...], runs: int
) -> Grouping | None:
    """Groups as they lie in memory: (outer, groups, inner); None where they lie otherwise.

    shape, order: the tensor's, dimensions from the outermost in memory to the innermost. groups:
    the dimensions that tell groups apart. runs: in place of them so many runs a sample.
    """
    n = math.prod(shape)
    if runs:
        is_plain = order == tuple(range(len(shape)))
        return (1, shape[0] * runs, n // (shape[0] * runs)) if is_plain else None
    extents = [(d in groups, shape[d]) for d in order if shape[d] != 1]
    kept = [i for i, (is_kept, _) in enumerate(extents) if is_kept]
    if not groups or (kept and kept[-1] - kept[0] + 1 != len(kept)):
        return None
    first, last = (kept[0], kept[-1] + 1) if kept else (0, 0)
    parts = (extents[:first], extents[first:last], extents[last:])
    outer, middle, inner = (math.prod(extent for _, extent in part) for part in parts)
    return outer, middle, inner
