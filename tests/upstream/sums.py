# SPDX-License-Identifier: MIT
"""Calls that keep gradients' books, and sums."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from cupy_training_ops.dtypes import FLOAT32, FLOAT64, INT64, dtype_name
from cupy_training_ops.samples import Generator, Sample
from upstream.values import (
    INT32,
    LISTS,
    SHAPES,
    Shape,
    label_of,
    list_of,
    normal,
    normals,
)

# shape, axes, other attributes than the defaults
SUMS: tuple[tuple[Shape, tuple[int, ...], dict[str, Any]], ...] = (
    ((37, 65), (0,), {}),
    ((37, 65), (-1,), {"keepdims": False}),
    ((3, 5, 7, 2), (0, -2), {}),
    ((3, 5, 7, 2), (3, 1), {"keepdims": False}),
    ((2, 3, 5), (), {}),
    ((2, 3, 5), (), {"keepdims": False}),
    ((2, 3, 5), (), {"noop_with_empty_axes": True}),
    ((2, 3, 5), (1,), {"noop_with_empty_axes": True}),
)


def _bookkeeping() -> Iterator[Sample]:
    """float32 only: for a narrower value upstream's kernel reads it as float32."""
    for shape in SHAPES:
        label, two = label_of(shape), (shape, shape)
        yield Sample("InPlaceAccumulator", label, partial(normals, shapes=two))
        yield Sample("InPlaceAccumulatorV2", label, partial(normals, shapes=two))
        yield Sample("ZeroGradient", label, partial(normals, shapes=(shape, (2,))))
        for flag in (False, True):
            make = partial(_flagged, shape=shape, flag=flag)
            yield Sample("InPlaceAccumulator", f"{label}-update_signal={flag}", make)
            yield Sample("InPlaceAccumulatorV2", f"{label}-overwrite_flag={flag}", make)


def _flagged(rng: Generator, shape: Shape, flag: bool) -> tuple[Any, ...]:
    return *normals(rng, (shape, shape)), flag


def _reductions() -> Iterator[Sample]:
    for shape, axes, attributes in SUMS:
        for dtype in (FLOAT32, FLOAT64, INT32, INT64):
            label = f"{dtype_name(dtype)}-{label_of(shape, {'axes': axes, **attributes})}"
            make = partial(_summed, shape=shape, axes=axes, dtype=dtype)
            yield Sample("ReduceSumTraining", label, make, attributes)
    for shapes in LISTS:
        yield Sample("ReduceAllL2", f"{len(shapes)}-tensors", partial(list_of, shapes=shapes))


def _summed(rng: Generator, shape: Shape, axes: tuple[int, ...], dtype: Any) -> tuple[Any, ...]:
    return normal(rng, shape, dtype), np.array(axes, INT64)


def samples() -> Iterator[Sample]:
    yield from _bookkeeping()
    yield from _reductions()
