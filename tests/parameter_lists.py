# SPDX-License-Identifier: MIT
"""Lists of parameters that optimizers take, and how results of several lists are compared."""

from __future__ import annotations

import numpy as np

from cupy_training_ops.dtypes import FLOAT32
from cupy_training_ops.testing.compare import assert_matches

UPSTREAM = ((32, 655_360), (64, 327_680), (32, 524_288), (32, 589_824))
TABLES = {
    "32-full": [10 * 64] * 32,
    "64-full": [5 * 64] * 64,
    "96-that-add-up": [64 * (3 + i % 2) for i in range(64)] + [64 * 3] * 32,
    "full-before-empties": [10 * 64] * 24 + [0] * 8,
    "all-but-one-empty": [0] * 32 + [1],
}
SIZES = (2**24 + 1, 2**25 + 1, 100_000_001)  # beyond which upstream skips elements
SHAPES = ((2, 3), (3,), (3, 2), (2,))


def array(*values, t=FLOAT32) -> np.ndarray:
    return np.array(values).astype(t)


def normal(rng: np.random.Generator, shape, dtype=FLOAT32) -> np.ndarray:
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def parameters(rng, sizes, grad=FLOAT32) -> list[list[np.ndarray]]:
    """Weights, gradients and both moments."""
    lists = [[normal(rng, n) for n in sizes] for _ in range(4)]
    lists[1] = [g.astype(grad) for g in lists[1]]
    lists[3] = [np.abs(v) for v in lists[3]]
    return lists


def copied(lists) -> list[list[np.ndarray]]:
    return [[x.copy() for x in xs] for xs in lists]


def assert_all_match(run, actual, expected, tolerance=None) -> None:
    for a, b in zip(actual, expected, strict=True):
        for x, y in zip(a, b, strict=True):
            assert_matches(run.host(x), y, tolerance)
