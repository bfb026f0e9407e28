# SPDX-License-Identifier: MIT
"""Gradients of gathers and of slices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from cupy_training_ops.dtypes import FLOAT32, FLOAT64, INT64, dtype_name
from cupy_training_ops.samples import Generator, Sample
from upstream.values import (
    INT32,
    Shape,
    indices,
    label_of,
    normal,
)

# shape of X, of the indices, attributes
GATHERS: dict[str, tuple[tuple[Shape, Shape, dict[str, Any]], ...]] = {
    "GatherGrad": (
        ((9, 7), (40,), {}),
        ((3, 11, 5), (4, 9), {"axis": 1}),
        ((3, 4, 13), (2, 3, 7), {"axis": -1}),
        ((6, 5), (), {"axis": 1}),
        ((3, 67), (301,), {}),
    ),
    "GatherNDGrad": (
        ((9, 8, 5), (60, 2), {}),
        ((7, 3), (31, 1), {}),
        ((4, 3, 5), (2, 17, 3), {}),
        ((3, 9, 7, 5), (3, 13, 2), {"batch_dims": 1}),
        ((2, 3, 4, 5), (2, 3, 9, 1), {"batch_dims": 2}),
    ),
    "GatherElementsGrad": (
        ((9, 7), (21, 7), {}),
        ((5, 7), (3, 25), {"axis": 1}),
        ((3, 5, 7), (2, 11, 6), {"axis": -2}),
        ((257,), (1003,), {}),
    ),
}

# shape of X; starts, ends, axes, steps. Upstream fails at negative steps of the last axis.
LAST, FIRST = np.iinfo(np.int64).max, np.iinfo(np.int64).min
SLICES: tuple[tuple[Shape, tuple[tuple[int, ...] | None, ...]], ...] = (
    ((5, 7), ((1, 2), (4, 6), None, None)),
    ((5, 7), ((1,), (LAST,), (1,), None)),
    ((5, 7), ((4, 1), (0, 6), None, (-2, 3))),
    ((5, 7, 3), ((-4, -1), (-1, FIRST), (0, 1), (2, -3))),
    ((3, 5, 7, 2), ((4, 100), (0, -100), (-2, 1), (-3, -1))),
    ((41,), ((3,), (38,), (0,), (4,))),
    ((4, 6), ((3,), (3,), (1,), (1,))),
)


def _gathers() -> Iterator[Sample]:
    """GatherNDGrad has int64 indices only."""
    for name, calls in GATHERS.items():
        index_types = (INT64,) if name == "GatherNDGrad" else (INT64, INT32)
        for (shape, at, attributes), index in itertools.product(calls, index_types):
            for dtype in (FLOAT32, FLOAT64):
                types = f"{dtype_name(dtype)}-{dtype_name(index)}"
                label = f"{types}-{label_of(shape)}-at-{label_of(at, attributes)}"
                make = partial(MAKERS[name], shape=shape, at=at, dtype=dtype, index=index)
                yield Sample(name, label, partial(make, **attributes), attributes)


def _gather(
    rng: Generator, shape: Shape, at: Shape, dtype: Any, index: Any, axis: int = 0
) -> tuple[Any, ...]:
    place = axis % len(shape)
    dy = normal(rng, shape[:place] + at + shape[place + 1 :], dtype)
    return np.array(shape), indices(rng, shape[axis], at, index), dy


def _gather_nd(
    rng: Generator, shape: Shape, at: Shape, dtype: Any, index: Any, batch_dims: int = 0
) -> tuple[Any, ...]:
    after = batch_dims + at[-1]
    update = normal(rng, at[:-1] + shape[after:], dtype)
    return np.array(shape), indices(rng, shape[batch_dims:after], at, index), update


def _gather_elements(
    rng: Generator, shape: Shape, at: Shape, dtype: Any, index: Any, axis: int = 0
) -> tuple[Any, ...]:
    return normal(rng, at, dtype), np.array(shape), indices(rng, shape[axis], at, index)


MAKERS = {
    "GatherGrad": _gather,
    "GatherNDGrad": _gather_nd,
    "GatherElementsGrad": _gather_elements,
}


def _slices() -> Iterator[Sample]:
    for number, (shape, bounds) in enumerate(SLICES):
        for dtype in (FLOAT32, FLOAT64):
            make = partial(_slice, shape=shape, bounds=bounds, dtype=dtype)
            yield Sample("SliceGrad", f"{dtype_name(dtype)}-{label_of(shape)}-{number}", make)


def _slice(rng: Generator, shape: Shape, bounds: Any, dtype: Any) -> tuple[Any, ...]:
    """dY has the shape of NumPy's slice; its bounds are ONNX's but for FIRST, which is None."""
    starts, ends, axes, steps = bounds
    taken = [slice(None)] * len(shape)
    for i, axis in enumerate(axes or range(len(starts))):
        end = None if ends[i] < -shape[axis] else ends[i]
        taken[axis] = slice(starts[i], end, steps[i] if steps else 1)
    dy = normal(rng, np.empty(shape)[tuple(taken)].shape, dtype)
    return dy, np.array(shape), *(None if b is None else np.array(b, INT64) for b in bounds)


def samples() -> Iterator[Sample]:
    yield from _gathers()
    yield from _slices()
