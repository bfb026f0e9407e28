# SPDX-License-Identifier: MIT
"""Sample inputs of rotary embeddings: any numbers for cos and sin, which need be no angles'."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from ...dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOATS, dtype_name
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


# Types of X, and of cos and sin.
TYPES = (*((dtype, dtype) for dtype in FLOATS), (FLOAT16, FLOAT32), (BFLOAT16, FLOAT32))


def inputs(
    rng: Generator,
    shape: Shape,
    n_angles: int,
    heads_last: bool,
    dtype: Any,
    angle_type: Any = None,
) -> tuple[Any, ...]:
    """Return X or dY of this shape, cos and sin, of which there are n_angles: 1 or the batch.

    angle_type: of cos and sin; None: dtype.
    """
    angles, kind = (n_angles, shape[1 if heads_last else 2], shape[3]), angle_type or dtype
    x = rng.standard_normal(shape).astype(dtype)
    return x, *(rng.standard_normal(angles).astype(kind) for _ in range(2))


def _samples(name: str) -> Iterator[Sample]:
    """Yield the samples of operator `name`: each of CALLS in every combination of types."""
    for label, shape, n_angles, heads_last, offset in CALLS:
        for dtype, angle_type in TYPES:
            types = {"dtype": dtype, "angle_type": angle_type}
            make = partial(inputs, shape=shape, n_angles=n_angles, heads_last=heads_last, **types)
            names = "-".join(dict.fromkeys(map(dtype_name, types.values())))
            yield Sample(name, f"{names}-{label}", make, {"heads_last": heads_last}, offset)


SAMPLES = {name: tuple(_samples(name)) for name in ("RotaryHalves", "RotaryHalvesGrad")}
