# SPDX-License-Identifier: MIT
"""Sample inputs of the encoder that measures its error."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ...dtypes import FLOATS, dtype_name
from ...samples import Generator, Sample
from ..gist.samples import one_input, special
from .operators import OPS

NAME = "GistGuardedMsfp15Encoder"
Grouping = tuple[int, int, int]

# label, shape, grouping, offset. Runs of whole tiles and of others; features; channels; rows that
# are measured in part.
SHAPES: tuple[tuple[str, tuple[int, ...], Grouping | None, int], ...] = (
    ("ordinary", (16, 64), None, 0),
    ("odd", (3, 5, 7), None, 0),
    ("empty", (0, 4), None, 0),
    ("empty-groups", (0, 4), (0, 4, 1), 0),
    ("one", (1,), None, 0),
    ("one-group", (1,), (1, 1, 1), 0),
    ("scalar", (), None, 0),
    ("misaligned", (1003,), None, 1),
    ("large", (5, 4099), None, 0),
    ("rows", (37, 64), (1, 37, 64), 0),
    ("rows-one-tile", (37, 8), (1, 37, 8), 0),
    ("rows-long", (3, 20_000), (1, 3, 20_000), 0),
    ("rows-odd", (37, 65), (1, 37, 65), 0),
    ("rows-misaligned", (9, 136), (1, 9, 136), 1),
    ("features", (70, 72), (70, 72, 1), 0),
    ("features-many", (300, 520), (300, 520, 1), 0),
    ("features-odd", (70, 71), (70, 71, 1), 0),
    ("features-misaligned", (70, 72), (70, 72, 1), 1),
    ("channels", (5, 6, 8, 7), (5, 6, 56), 0),
    ("channels-odd", (5, 6, 7, 7), (5, 6, 49), 0),
    ("channels-large", (2, 3, 4104), (2, 3, 4104), 0),
    ("sampled-rows", (5000, 128), (1, 5000, 128), 0),
)


def _off_centre(rng: Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return random normal numbers around a mean from -4 to 4, a tenth of them zero."""
    values = rng.standard_normal(shape) + rng.uniform(-4, 4)
    return np.asarray(values * (rng.random(shape) > 0.1)).astype(dtype)


def _samples() -> Iterator[Sample]:
    """Yield samples of each shape and grouping in each type, and special values."""
    for dtype in FLOATS:
        t = dtype_name(dtype)
        for label, shape, grouping, offset in SHAPES:
            make = partial(one_input, _off_centre, shape=shape, dtype=dtype)
            yield Sample(NAME, f"{t}-{label}", make, {"grouping": grouping}, offset)
        make = partial(one_input, special, dtype=dtype)
        yield Sample(NAME, f"{t}-special", make)
        yield Sample(NAME, f"{t}-special-nonfinite", make, {"keep_nonfinite": True})


SAMPLES = {name: tuple(_samples()) for name in OPS}
