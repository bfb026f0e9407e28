# SPDX-License-Identifier: MIT
"""Sample inputs of views, joining and splitting."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ...dtypes import BOOL, FIXED_SIZE, dtype_name, to_dtype
from ...samples import Generator, Sample, Shape

# One type of each element size.
SIZES = tuple(map(to_dtype, ("uint8", "float16", "float32", "int64", "complex128")))

# label, shapes, axis, offset; "large" fills several blocks and ends inside one
CONCAT: tuple[tuple[str, tuple[Shape, ...], int, int], ...] = (
    ("odd", ((12, 19), (12, 18), (12, 0), (12, 3), (12, 13)), -1, 0),
    ("narrow", ((40, 1), (40, 2), (40, 3)), 1, 0),
    ("rows", ((3, 5, 7), (0, 5, 7), (4, 5, 7)), 0, 0),
    ("empty", ((0, 3), (0, 4)), 1, 0),
    ("one", ((1,),), 0, 0),
    ("misaligned", ((7, 133), (7, 140)), 1, 1),
    ("large", ((5, 4099), (5, 3001)), 1, 0),
)
ORDINARY = ((16, 32), (16, 64), (16, 16))


def values(rng: Generator, shape: Shape, dtype: Any) -> Any:
    """Return random normal numbers, bools, or integers of random bits."""
    if dtype == BOOL:
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        return rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype)[..., 0]
    real = rng.standard_normal(shape)
    return (real + 1j * rng.standard_normal(shape) if dtype.kind == "c" else real).astype(dtype)


def _view_inputs(rng: Generator, shapes: tuple[Shape, ...], dtype: Any) -> tuple[Any, ...]:
    """Return a flat array and the shapes of its pieces."""
    n = sum(int(np.prod(shape)) for shape in shapes)
    return values(rng, (n,), dtype), list(shapes)


def _concat_inputs(rng: Generator, shapes: tuple[Shape, ...], dtype: Any) -> tuple[Any, ...]:
    return ([values(rng, shape, dtype) for shape in shapes],)


def _split_inputs(
    rng: Generator, shapes: tuple[Shape, ...], axis: int, dtype: Any
) -> tuple[Any, ...]:
    """Return an array of parts with `shapes` joined along the axis, and their lengths."""
    whole = list(shapes[0])
    split = tuple(shape[axis] for shape in shapes)
    whole[axis] = sum(split)
    return values(rng, tuple(whole), dtype), split


def _view_samples() -> Iterator[Sample]:
    """Yield samples of View: each type; odd, empty, many and misaligned parts."""
    shapes = ((2, 3), (), (0, 4), (1, 5), (7,))
    for dtype in FIXED_SIZE:
        make = partial(_view_inputs, shapes=shapes, dtype=dtype)
        yield Sample("View", f"{dtype_name(dtype)}-ordinary", make)
    others: tuple[tuple[str, tuple[Shape, ...]], ...] = (
        ("odd", ((3, 5), (1, 7), (1,))),
        ("empty", ((0,), (3, 0))),
        ("one", ((),)),
        ("none", ()),
    )
    for label, some in others:
        yield Sample("View", f"float32-{label}", partial(_view_inputs, shapes=some, dtype=SIZES[2]))
    large = partial(_view_inputs, shapes=((40, 50),) * 1025, dtype=SIZES[0])
    yield Sample("View", "uint8-large", large)
    yield Sample(
        "View", "float32-misaligned", partial(_view_inputs, shapes=shapes, dtype=SIZES[2]), {}, 1
    )


def _concat_samples() -> Iterator[Sample]:
    """Yield samples of ConcatTraining: each type, and lists of shapes in each size of type."""
    name = "ConcatTraining"
    for dtype in FIXED_SIZE:
        make = partial(_concat_inputs, shapes=ORDINARY, dtype=dtype)
        yield Sample(name, f"{dtype_name(dtype)}-ordinary", make, {"axis": 1})
    for dtype in SIZES:
        for label, shapes, axis, offset in CONCAT:
            make = partial(_concat_inputs, shapes=shapes, dtype=dtype)
            yield Sample(name, f"{dtype_name(dtype)}-{label}", make, {"axis": axis}, offset)
    for n in (33, 400):
        shapes = tuple((3, i % 4) for i in range(n))
        make = partial(_concat_inputs, shapes=shapes, dtype=SIZES[2])
        yield Sample(name, f"float32-{n}-inputs", make, {"axis": -1})
    make = partial(_concat_inputs, shapes=((3, 16),) * 250, dtype=SIZES[2])
    yield Sample(name, "float32-250-even-inputs", make, {"axis": 1})


def _split_samples() -> Iterator[Sample]:
    """Yield samples of SplitTraining: each type, and lists of shapes in each size of type."""
    name = "SplitTraining"
    for dtype in FIXED_SIZE:
        make = partial(_split_inputs, shapes=ORDINARY, axis=1, dtype=dtype)
        yield Sample(name, f"{dtype_name(dtype)}-ordinary", make, {"axis": 1})
    for dtype in SIZES:
        for label, shapes, axis, offset in CONCAT:
            make = partial(_split_inputs, shapes=shapes, axis=axis, dtype=dtype)
            yield Sample(name, f"{dtype_name(dtype)}-{label}", make, {"axis": axis}, offset)
    shapes = tuple((3, i % 4) for i in range(400))
    make = partial(_split_inputs, shapes=shapes, axis=1, dtype=SIZES[2])
    yield Sample(name, "float32-400-outputs", make, {"axis": 1})
    make = partial(_split_inputs, shapes=((3, 16),) * 250, axis=1, dtype=SIZES[2])
    yield Sample(name, "float32-250-even-outputs", make, {"axis": 1})
    even = partial(_even, shape=(4, 12, 5), dtype=SIZES[1])
    yield Sample(name, "float16-even", even, {"axis": 1, "num_outputs": 3})


def _even(rng: Generator, shape: Shape, dtype: Any) -> tuple[Any, ...]:
    return (values(rng, shape, dtype),)


SAMPLES = {
    "ConcatTraining": tuple(_concat_samples()),
    "SplitTraining": tuple(_split_samples()),
    "View": tuple(_view_samples()),
}
