# SPDX-License-Identifier: MIT
"""Decide whether codes are good enough for a consumer: what is measured of them, and its limits.

An error counts beside what a consumer sees: a layer norm of rows with mean 100 sees x - mean.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..families.gist_guard.sample import Grouping

# What a consumer does with a value.
LINEAR = "linear"  # multiplies it by a parameter
NORMALISED = "normalised"  # centres it, and divides by its deviation
PRODUCT = "product"  # multiplies it by another activation
SMOOTH = "smooth"  # takes a smooth function of each number

# Measures of codes; each is also the reason why codes fail.
TILES = "tiles"  # by the encoder, GistGuardedMsfp15Encoder: its four numbers
# Of float16: the largest magnitude; for products deviation and means of features, squared, too.
RANGE = "range"
INDEX = "index"  # was a number not from 0 to 15?
MEASURES = {"msfp15_signed": TILES, "pack16": RANGE, "index4": INDEX}

# Squares of an error's share of the deviation that its consumer sees.
TILE = 0.03**2  # of the distances from the means of tiles, or of features and channels
GROUP = 0.06**2  # of those of each normalised group
LARGEST, LEAST = 65504.0, 2.0**-6  # float16's steps are 2^-18 of the least, and smaller
RANK_OF_HEADS = 4  # (samples, heads, rows, features)
MEANS = 4.0**2  # squared deviations that the means of features may be large


class ErrorCheck(NamedTuple):
    """A measure of codes, and what they are needed for."""

    measure: str  # empty where nothing is measured
    need: str
    grouping: Grouping | None = None  # of what is centred, as the encoder takes it

    def within(self, numbers: Any) -> tuple[Any, Any, Any]:
        """Compare with the limits for everyone, for centred features, for normalised groups.

        numbers: a measure's. Gives bools, or bools on a device. NaN is beyond every limit.
        """
        if self.measure == TILES:
            error, tiles, groups, worst = numbers
            has_groups = self.grouping is not None
            features, normalised = error <= TILE * groups, worst <= GROUP
            return error <= TILE * tiles, has_groups and features, has_groups and normalised
        if self.measure == INDEX:
            (is_outside,) = numbers
            return is_outside == 0, True, True
        largest, *spread = numbers
        in_range = (largest >= LEAST) & (largest <= LARGEST)
        if spread:
            deviation, means = spread
            in_range = in_range & (means <= MEANS * deviation)
        return in_range, True, True

    def passes(self, numbers: Any) -> Any:
        """Return True if codes are good enough for the need; a bool on a device for its numbers."""
        codes, features, groups = self.within(numbers)
        if self.need == NORMALISED:
            return codes & groups
        return codes & features if self.need == PRODUCT else codes

    def failure(self, numbers: Any) -> tuple[str, bool]:
        """Return why codes fail, empty where they do not; and if they pass where features are
        centred."""
        codes, features, groups = self.within(numbers)
        if not codes:
            return self.measure, features
        if self.need == NORMALISED and not groups:
            return "groups", features
        return "features" if self.need == PRODUCT and not features else "", features


def measure_range(x: Any, numbers: Any, need: str) -> Any:
    """Measure RANGE of an array, into three numbers: features matter to products alone."""
    numbers[:] = 0
    numbers[0], numbers[1] = x.max(), -x.min()
    numbers[0] = numbers[:2].max()
    numbers[1] = 0
    if need == PRODUCT:
        axes = (0, 2) if x.ndim == RANK_OF_HEADS else tuple(range(x.ndim - 1))
        with np.errstate(all="ignore"):  # an infinity is beyond the range, and so are its numbers
            means = x.mean(axis=axes, keepdims=True, dtype=numbers.dtype)
            numbers[1] = ((x - means) ** 2).sum(dtype=numbers.dtype)
            numbers[2] = (means * means).sum() * (x.size // means.size)
    return numbers
