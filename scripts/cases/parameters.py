# SPDX-License-Identifier: MIT
"""Inputs: normal numbers, and the parameters of a 24-layer, 2,048-wide transformer: 292 tensors,
1.3 billion elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import cupy

SEED = 20_26
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


def normals(
    dtype: Any, *shapes: tuple[int, ...], then: tuple[Any, ...] = ()
) -> Callable[[Any], tuple[Any, ...]]:
    """Maker of normal numbers of these shapes, with host values behind them."""
    return lambda rng: (*(normal(rng, shape, dtype) for shape in shapes), *then)


def rows(length: int) -> tuple[int, int]:
    """About 64 Mi elements; whole multiples of 32 rows, so that odd lengths start at every
    alignment."""
    return 2**26 // length // 32 * 32, length


def images(rng: Any, shape: tuple[int, ...], dtype: Any, last: bool) -> Any:
    """Normal numbers; `last`: with the channels last in memory."""
    if not last:
        return normal(rng, shape, dtype)
    return cupy.moveaxis(normal(rng, (shape[0], *shape[2:], shape[1]), dtype), -1, 1)


def integers(rng: Any, n: int, shape: Any) -> Any:
    """Below n. The generator's kernels were seen to run before others of the null stream were done
    with memory that they reuse: normal values stood in indices."""
    cupy.cuda.Device().synchronize()
    result = rng.integers(0, n, shape, dtype=cupy.int64)
    cupy.cuda.Device().synchronize()
    return result


def parameters(rng: Any, dtype: Any) -> list[Any]:
    """Every parameter as an array of its own."""
    return [normal(rng, shape, dtype) for shape in SHAPES]
