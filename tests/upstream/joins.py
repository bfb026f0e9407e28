# SPDX-License-Identifier: MIT
"""Joining and splitting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from cupy_training_ops.dtypes import BOOL, FLOAT16, FLOAT32, FLOAT64, INT64, dtype_name
from cupy_training_ops.samples import Generator, Sample
from upstream.values import (
    INT32,
    Shape,
    label_of,
    list_of,
    normal,
)

# axis, shapes that are joined, or come from splitting
PARTS: tuple[tuple[int, tuple[Shape, ...]], ...] = (
    (0, ((3, 5), (1, 5), (4, 5))),
    (-1, ((3, 1, 7), (3, 1, 2), (3, 1, 5))),
    (1, ((2, 3, 5), (2, 3, 5))),
    (1, tuple((3, 1 + n % 4) for n in range(35))),
)


def _joins() -> Iterator[Sample]:
    for axis, shapes in PARTS:
        for dtype in (FLOAT32, FLOAT64, FLOAT16, INT64, BOOL):
            label = f"{dtype_name(dtype)}-{len(shapes)}-of-{label_of(shapes[0])}"
            make = partial(list_of, shapes=shapes, dtype=dtype)
            yield Sample("ConcatTraining", label, make, {"axis": axis})


def _splits() -> Iterator[Sample]:
    for axis, shapes in PARTS:
        for dtype in (FLOAT32, INT64, INT32):
            label = f"{dtype_name(dtype)}-{len(shapes)}-of-{label_of(shapes[0])}"
            make = partial(_parted, shapes=shapes, axis=axis, dtype=dtype)
            yield Sample("SplitTraining", label, make, {"axis": axis})
    equal = {"axis": 1, "num_outputs": 3}
    yield Sample("SplitTraining", "equal", partial(_parted, shapes=((2, 9, 5),), axis=None), equal)


def _parted(
    rng: Generator, shapes: Sequence[Shape], axis: int | None, dtype: Any = FLOAT32
) -> tuple[Any, ...]:
    """An array that falls into these shapes; for no axis into equal parts, `split` being empty."""
    sizes = [] if axis is None else [shape[axis] for shape in shapes]
    joined = np.concatenate([normal(rng, shape, dtype) for shape in shapes], axis=axis or 0)
    return joined, np.array(sizes, INT64)


def samples() -> Iterator[Sample]:
    yield from _joins()
    yield from _splits()
