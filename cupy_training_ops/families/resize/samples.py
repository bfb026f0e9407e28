# SPDX-License-Identifier: MIT
"""Sample inputs of ResizeGrad."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from ...dtypes import FLOATS, dtype_name
from ...samples import Generator, Sample

# label, shape of X, (Ho, Wo), scales, offset; "wide" and "large" need more than one tile
SIZES: tuple[tuple[str, tuple[int, ...], tuple[int, int], Any, int], ...] = (
    ("ordinary", (2, 3, 8, 16), (16, 32), (1, 1, 2, 2), 0),
    ("odd", (1, 3, 5, 7), (13, 9), None, 0),
    ("scales", (1, 2, 4, 4), (6, 6), (1.0, 1.0, 1.7, 1.7), 0),
    ("down", (2, 1, 13, 40), (5, 12), None, 0),
    ("same", (2, 2, 3, 5), (3, 5), None, 0),
    ("far-up", (1, 1, 3, 2), (40, 380), None, 0),
    ("to-one", (1, 2, 9, 70), (1, 1), None, 0),
    ("from-one", (1, 2, 1, 1), (5, 6), None, 0),
    ("wide", (1, 1, 3, 200), (5, 300), None, 0),
    ("empty", (0, 3, 4, 4), (8, 8), None, 0),
    ("nothing", (1, 2, 3, 4), (0, 7), None, 0),
    ("one", (1, 1, 1, 1), (1, 1), None, 0),
    ("misaligned", (1, 3, 6, 5), (12, 10), None, 1),
    ("large", (2, 2, 21, 67), (42, 134), None, 0),
)
MODES = ("half_pixel", "align_corners")
# shape of X where every pixel becomes two by two: a part of a warp, several warps to a row, one row
DOUBLED = {
    "doubled": (3, 2, 9, 24),
    "doubled-wide": (1, 2, 5, 136),
    "doubled-row": (5, 1, 1, 8),
}


def _inputs(
    rng: Generator, shape: tuple[int, ...], outputs: tuple[int, int], scales: Any, dtype: Any
) -> tuple[Any, ...]:
    """Return random dY (N, C, *outputs) and X of `shape`, no roi, and the scales."""
    dy = rng.standard_normal((*shape[:2], *outputs)).astype(dtype)
    x = rng.standard_normal(shape).astype(dtype)
    return dy, x, None, scales


def _samples() -> Iterator[Sample]:
    """Yield samples of each pair of sizes in each type, in one mode or the other."""
    for j, (label, shape, outputs, scales, offset) in enumerate(SIZES):
        for i, dtype in enumerate(FLOATS):
            make = partial(_inputs, shape=shape, outputs=outputs, scales=scales, dtype=dtype)
            mode = MODES[(i + j) % 2]
            attributes = {"coordinate_transformation_mode": mode}
            yield Sample("ResizeGrad", f"{dtype_name(dtype)}-{label}", make, attributes, offset)
    for label, shape in DOUBLED.items():
        for dtype in FLOATS:
            outputs = (2 * shape[2], 2 * shape[3])
            make = partial(_inputs, shape=shape, outputs=outputs, scales=None, dtype=dtype)
            yield Sample("ResizeGrad", f"{dtype_name(dtype)}-{label}", make)


SAMPLES = {"ResizeGrad": tuple(_samples())}
