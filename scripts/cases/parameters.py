# SPDX-License-Identifier: MIT
"""The parameters of a 24-layer, 2,048-wide transformer: 292 tensors, 1.3 billion elements."""

from __future__ import annotations

import math
from typing import Any

import cupy

LAYERS, WIDTH, VOCABULARY, POSITIONS = 24, 2048, 50_257, 1024
NORM = ((WIDTH,), (WIDTH,))
LAYER = (
    *NORM,
    (3 * WIDTH, WIDTH),  # query, key, value
    (3 * WIDTH,),
    (WIDTH, WIDTH),
    (WIDTH,),
    *NORM,
    (4 * WIDTH, WIDTH),
    (4 * WIDTH,),
    (WIDTH, 4 * WIDTH),
    (WIDTH,),
)
SHAPES = ((VOCABULARY, WIDTH), (POSITIONS, WIDTH), *LAYER * LAYERS, *NORM)


def normal(rng: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Normal numbers on the GPU."""
    return rng.standard_normal(math.prod(shape), dtype=cupy.float32).astype(dtype).reshape(shape)


def parameters(rng: Any, dtype: Any) -> list[Any]:
    """Every parameter as an array of its own."""
    return [normal(rng, shape, dtype) for shape in SHAPES]
