# SPDX-License-Identifier: MIT
"""Arrays to try a codec on where the user has none."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ..families.gist.samples import SPECIALS

DISTRIBUTIONS = ("normal", "relu", "uniform", "denormal", "special")


def generate(distribution: str, shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    """An array of the distribution; the same seed gives the same values.

    uniform is over [-1, 1), denormal below the dtype's smallest normal number, special one special
    value (NaN, infinite, at the edge of a rounding) among fifteen normal ones.
    """
    rng = np.random.default_rng(seed)
    values = rng.uniform(-1, 1, shape)
    if distribution == "denormal":
        values *= float(ml_dtypes.finfo(dtype).smallest_normal)
    if distribution in ("normal", "relu", "special"):
        values = rng.standard_normal(shape)
    if distribution == "relu":
        values = np.maximum(values, 0)
    if distribution == "special":
        values = np.where(rng.random(shape) < 1 / 16, rng.choice(SPECIALS, shape), values)
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(dtype)
