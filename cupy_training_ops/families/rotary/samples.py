# SPDX-License-Identifier: MIT
"""Sample inputs of rotary embeddings: any numbers for cos and sin, which need be no angles'."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from ...dtypes import FLOATS, dtype_name
from ...samples import Generator, Sample, Shape

# label, shape of X, first extent of cos and sin (1, or as many as the batch), heads_last, offset.
# Half a row of "odd" is no whole vector; "large" fills several blocks and ends inside one.
CALLS: tuple[tuple[str, Shape, int, bool, int], ...] = (
    ("ordinary", (2, 3, 5, 64), 1, False, 0),
    ("ordinary-last", (2, 5, 3, 64), 1, True, 0),
    ("batched", (3, 2, 7, 32), 3, False, 0),
    ("batched-last", (3, 7, 2, 32), 3, True, 0),
    ("odd", (3, 5, 7, 6), 3, False, 0),
    ("empty", (2, 3, 0, 16), 2, False, 0),
    ("one", (1, 1, 1, 2), 1, False, 0),
    ("misaligned", (2, 3, 9, 48), 1, True, 1),
    ("large", (2, 5, 53, 80), 2, False, 0),
)


def inputs(
    rng: Generator, shape: Shape, n_angles: int, heads_last: bool, dtype: Any
) -> tuple[Any, ...]:
    """Return X or dY of this shape, cos and sin, of which there are n_angles: 1 or the batch."""
    angles = n_angles, shape[1 if heads_last else 2], shape[3]
    return tuple(rng.standard_normal(each).astype(dtype) for each in (shape, angles, angles))


def _samples(name: str) -> Iterator[Sample]:
    """Yield the samples of operator `name`: each of CALLS in every dtype."""
    for label, shape, n_angles, heads_last, offset in CALLS:
        for dtype in FLOATS:
            make = partial(
                inputs, shape=shape, n_angles=n_angles, heads_last=heads_last, dtype=dtype
            )
            attributes = {"heads_last": heads_last}
            yield Sample(name, f"{dtype_name(dtype)}-{label}", make, attributes, offset)


SAMPLES = {name: tuple(_samples(name)) for name in ("RotaryHalves", "RotaryHalvesGrad")}
