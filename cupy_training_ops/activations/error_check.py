# SPDX-License-Identifier: MIT
"""Measures of codes' errors, and their limits by the need of a consumer.

Errors are relative to what the consumer uses: of rows with mean 100 a layer norm uses x - mean.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..families.gist_guard.sample import Grouping

# Needs: what a consumer does with a value.
LINEAR = "linear"  # multiplies it by a parameter
NORMALISED = "normalised"  # subtracts means and divides by deviations
PRODUCT = "product"  # multiplies it by another activation
SMOOTH = "smooth"  # applies a smooth function elementwise

# Measures; each is also the reason why codes fail.
TILES = "tiles"  # GistGuardedMsfp15Encoder's guard: squared error, deviations, worst group
RANGE = "range"  # of float16: largest magnitude; for products also variance and squared means
INDEX = "index"  # whether a number is outside of 0 to 15
# By codec; others have none.
MEASURES = {"msfp15_signed": TILES, "pack16": RANGE, "index4": INDEX}

# Limits of squared errors, relative to squared distances from means.
TILE = 0.03**2  # means of tiles, or of features
GROUP = 0.06**2  # means of each normalised group
LARGEST, LEAST = 65504.0, 2.0**-6  # float16's steps are 2^-18 of the least, and smaller
RANK_OF_HEADS = 4  # (samples, heads, rows, features)
MEANS = 4.0**2  # limit of the squared means of features, relative to their variance


class ErrorCheck(NamedTuple):
    """A measure of codes, and the need of their consumer.

    `numbers`, which methods take, are what was measured. TILES: the sums of squared errors, of
    squared distances from means of tiles of 8 neighbours, of those from means of groups, and the
    largest quotient of the first and last in a group. RANGE: the largest magnitude, and of products
    the sums of squared distances from means, and of squared means. INDEX: whether one is beyond 15.
    """

    measure: str  # "": nothing is measured
    need: str
    grouping: Grouping | None = None  # (outer, groups, inner): extents; a group has a common mean

    def within(self, numbers: Any) -> tuple[Any, Any, Any]:
        """Return bools: numbers are within the limits (of any need, of values before a norm of
        features, of groups that are normalised).

        They are on the device of the numbers; NaN is beyond every limit.
        """
        if self.measure == TILES:
            error, tiles, groups, worst = numbers
            has_groups = self.grouping is not None  # else the last two numbers mean nothing
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
        """Return True if codes suffice for the need; a bool on the device of the numbers."""
        codes, features, groups = self.within(numbers)
        if self.need == NORMALISED:
            return codes & groups
        return codes & features if self.need == PRODUCT else codes

    def failure(self, numbers: Any) -> tuple[str, bool]:
        """Return (why codes fail or "", whether they pass before a norm of features)."""
        codes, features, groups = self.within(numbers)
        if not codes:
            return self.measure, features
        if self.need == NORMALISED and not groups:
            return "groups", features
        return "features" if self.need == PRODUCT and not features else "", features


def measure_range(x: Any, numbers: Any, need: str) -> Any:
    """Write x's largest magnitude, and if the need is PRODUCT its sums of (x - mean)^2 and mean^2,
    to `numbers`, three of float64, and return these. Means are over all dimensions but features.
    """
    numbers[:] = 0
    numbers[0], numbers[1] = x.max(), -x.min()  # the larger one is the largest magnitude
    numbers[0] = numbers[:2].max()
    numbers[1] = 0
    if need == PRODUCT:
        axes = (0, 2) if x.ndim == RANK_OF_HEADS else tuple(range(x.ndim - 1))
        with np.errstate(all="ignore"):  # infinities fail by the range anyway
            means = x.mean(axis=axes, keepdims=True, dtype=numbers.dtype)
            numbers[1] = ((x - means) ** 2).sum(dtype=numbers.dtype)
            numbers[2] = (means * means).sum() * (x.size // means.size)
    return numbers
