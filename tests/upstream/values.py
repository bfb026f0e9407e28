# SPDX-License-Identifier: MIT
"""Values, shapes and labels of the calls that onnxruntime answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cupy_training_ops.dtypes import BOOL, FLOAT32, INT64
from cupy_training_ops.samples import Generator

INT32 = np.dtype(np.int32)
Shape = tuple[int, ...]

SHAPES: tuple[Shape, ...] = ((257,), (3, 5, 7), (2, 1003))
LISTS: tuple[tuple[Shape, ...], ...] = (((3,),), ((5, 7), (1,), (2, 3, 501)), ((13,),) * 40)


def normal(rng: Generator, shape: Shape, dtype: Any = FLOAT32) -> Any:
    """Normal numbers, some beyond the linear part of any activation; integers, or bools."""
    if dtype == BOOL:
        return rng.random(shape) < 0.5
    spread = 1000 if dtype in (INT32, INT64) else 2
    return np.asarray(spread * rng.standard_normal(shape)).astype(dtype)


def away_from_zero(rng: Generator, shape: Shape, dtype: Any = FLOAT32) -> Any:
    """Between 0.5 and 2 in magnitude, of either sign: for divisors, and what is divided."""
    signs = rng.choice([-1.0, 1.0], shape)
    return np.asarray(signs * rng.uniform(0.5, 2, shape)).astype(dtype)


def indices(rng: Generator, extent: Any, shape: Shape, dtype: Any = INT64) -> Any:
    """In range, of either sign, with duplicates wherever there are more of them than places."""
    return rng.integers(-np.asarray(extent), extent, shape).astype(dtype)


def normals(rng: Generator, shapes: Sequence[Shape]) -> tuple[Any, ...]:
    return tuple(normal(rng, shape) for shape in shapes)


def list_of(rng: Generator, shapes: Sequence[Shape], dtype: Any = FLOAT32) -> tuple[Any, ...]:
    return ([normal(rng, shape, dtype) for shape in shapes],)


def label_of(shape: Shape, attributes: Any = None) -> str:
    parts = ["x".join(map(str, shape)) or "scalar"]
    return "-".join(parts + [f"{name}={value}" for name, value in (attributes or {}).items()])
