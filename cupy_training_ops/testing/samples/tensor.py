# SPDX-License-Identifier: MIT
"""Sample inputs of tensor movement."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ...dtypes import BOOL, FIXED_SIZE, INT64, dtype_name, to_dtype
from . import Generator, Sample

Shape = tuple[int, ...]

# One type of each element size.
SIZES = tuple(map(to_dtype, ("uint8", "float16", "float32", "int64", "complex128")))
INT64_MAX = 2**63 - 1

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

# label, shape, starts, ends, axes, steps, offset
SLICES: tuple[tuple[str, Shape, Shape, Shape, Shape | None, Shape | None, int], ...] = (
    ("ordinary", (8, 64), (16,), (48,), (1,), None, 0),
    ("odd", (5, 7, 67), (1, 3), (4, 66), (0, 2), None, 0),
    ("contract", (2, 4), (1, 0), (2, 3), (0, 1), (1, 2), 0),
    ("backwards", (2, 2, 2, 2), (1, 1), (0, 2), (0, 1), (-1, 1), 0),
    ("to-the-end", (1, 2, 2, 2, 2), (1,), (INT64_MAX,), (2,), None, 0),
    ("two-apart", (3, 4, 5, 6), (1, 2), (3, 6), (1, 3), (1, 1), 0),
    ("whole-backwards", (9, 33), (INT64_MAX, -1), (-INT64_MAX, -99), None, (-2, -3), 0),
    ("before-the-front", (6, 5), (-9, 0), (3, -1), None, (1, 1), 0),
    ("steps-apart", (4, 6, 5), (0, 5, 1), (4, -7, 5), (2, 1, 0), (3, -4, 2), 0),
    ("nothing", (6, 5), (4,), (2,), (0,), (1,), 0),
    ("empty", (0, 5), (0,), (9,), None, None, 0),
    ("one", (1,), (0,), (1,), None, None, 0),
    ("misaligned", (5, 131), (2,), (125,), (1,), None, 1),
    ("large", (9, 4099), (1, 5), (8, -3), None, None, 0),
)

# label, (M1, M2), the rest of the shape, number of indices, offset
ROWS: tuple[tuple[str, Shape, Shape, int, int], ...] = (
    ("ordinary", (3, 8), (64,), 13, 0),
    ("odd", (5, 3), (67,), 9, 0),
    ("narrow", (5, 30), (), 60, 0),
    ("deep", (2, 3), (3, 5), 4, 0),
    ("nothing", (2, 3), (5,), 0, 0),
    ("empty", (2, 3), (0,), 4, 0),
    ("one", (1, 1), (1,), 1, 0),
    ("misaligned", (2, 7), (61,), 8, 1),
    ("large", (4, 64), (129,), 170, 0),
)


def values(rng: Generator, shape: Shape, dtype: Any) -> Any:
    """Numbers of any type: normal ones, random bits for integers."""
    if dtype == BOOL:
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        return rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype)[..., 0]
    real = rng.standard_normal(shape)
    return (real + 1j * rng.standard_normal(shape) if dtype.kind == "c" else real).astype(dtype)


def _views(rng: Generator, shapes: tuple[Shape, ...], dtype: Any) -> tuple[Any, ...]:
    n = sum(int(np.prod(shape)) for shape in shapes)
    return values(rng, (n,), dtype), list(shapes)


def _parts(rng: Generator, shapes: tuple[Shape, ...], dtype: Any) -> tuple[Any, ...]:
    return ([values(rng, shape, dtype) for shape in shapes],)


def _joined(rng: Generator, shapes: tuple[Shape, ...], axis: int, dtype: Any) -> tuple[Any, ...]:
    whole = list(shapes[0])
    split = tuple(shape[axis] for shape in shapes)
    whole[axis] = sum(split)
    return values(rng, tuple(whole), dtype), split


def _sliced(
    rng: Generator, shape: Shape, starts: Shape, ends: Shape, axes: Any, steps: Any, dtype: Any
) -> tuple[Any, ...]:
    taken = [slice(None)] * len(shape)
    every = (1,) * len(starts) if steps is None else steps
    for i, axis in enumerate(range(len(starts)) if axes is None else axes):
        taken[axis] = slice(starts[i], ends[i], every[i])
    dy = values(rng, np.empty(shape, bool)[tuple(taken)].shape, dtype)
    return dy, shape, starts, ends, axes, steps


def _selected(
    rng: Generator, dims: Shape, rest: Shape, n: int, dtype: Any, index: Any = INT64
) -> tuple[Any, ...]:
    """Rows to select with repetitions; a few of them outside."""
    indices = rng.integers(-1, dims[0] * dims[1] + 1, n).astype(index)
    return values(rng, (*dims, *rest), dtype), indices


def _packed(
    rng: Generator, dims: Shape, rest: Shape, n: int, dtype: Any, index: Any = INT64
) -> tuple[Any, ...]:
    """Rows in any order, some with the same place, some without one."""
    indices = rng.integers(-1, dims[0] * dims[1] + 1, n).astype(index)
    return values(rng, (n, *rest), dtype), indices, dims


def _view() -> Iterator[Sample]:
    shapes = ((2, 3), (), (0, 4), (1, 5), (7,))
    for dtype in FIXED_SIZE:
        make = partial(_views, shapes=shapes, dtype=dtype)
        yield Sample("View", f"{dtype_name(dtype)}-ordinary", make)
    for label, some in (("empty", ((0,), (3, 0))), ("one", ((),)), ("none", ())):
        yield Sample("View", f"float32-{label}", partial(_views, shapes=some, dtype=SIZES[2]))
    large = partial(_views, shapes=((40, 50),) * 1025, dtype=SIZES[0])
    yield Sample("View", "uint8-large", large)
    yield Sample("View", "float32-misaligned", partial(_views, shapes=shapes, dtype=SIZES[2]), {}, 1)


def _concat() -> Iterator[Sample]:
    name = "ConcatTraining"
    for dtype in FIXED_SIZE:
        make = partial(_parts, shapes=ORDINARY, dtype=dtype)
        yield Sample(name, f"{dtype_name(dtype)}-ordinary", make, {"axis": 1})
    for dtype in SIZES:
        for label, shapes, axis, offset in CONCAT:
            make = partial(_parts, shapes=shapes, dtype=dtype)
            yield Sample(name, f"{dtype_name(dtype)}-{label}", make, {"axis": axis}, offset)
    for n in (33, 400):
        shapes = tuple((3, i % 4) for i in range(n))
        make = partial(_parts, shapes=shapes, dtype=SIZES[2])
        yield Sample(name, f"float32-{n}-inputs", make, {"axis": -1})


def _split() -> Iterator[Sample]:
    name = "SplitTraining"
    for dtype in SIZES:
        for label, shapes, axis, offset in (("ordinary", ORDINARY, 1, 0), *CONCAT):
            make = partial(_joined, shapes=shapes, axis=axis, dtype=dtype)
            yield Sample(name, f"{dtype_name(dtype)}-{label}", make, {"axis": axis}, offset)
    shapes = tuple((3, i % 4) for i in range(400))
    make = partial(_joined, shapes=shapes, axis=1, dtype=SIZES[2])
    yield Sample(name, "float32-400-outputs", make, {"axis": 1})
    even = partial(_even, shape=(4, 12, 5), dtype=SIZES[1])
    yield Sample(name, "float16-even", even, {"axis": 1, "num_outputs": 3})


def _even(rng: Generator, shape: Shape, dtype: Any) -> tuple[Any, ...]:
    return (values(rng, shape, dtype),)


def _slice() -> Iterator[Sample]:
    for i, (label, *arguments, offset) in enumerate(SLICES):
        for dtype in (SIZES[i % 5], SIZES[(i + 2) % 5]):
            make = partial(_in_order, _sliced, arguments=(*arguments, dtype))
            yield Sample("SliceGrad", f"{dtype_name(dtype)}-{label}", make, {}, offset)


def _rows(name: str, maker: Any) -> Iterator[Sample]:
    for i, (label, *arguments, offset) in enumerate(ROWS):
        for dtype in (SIZES[i % 5], SIZES[(i + 2) % 5]):
            make = partial(_in_order, maker, arguments=(*arguments, dtype))
            yield Sample(name, f"{dtype_name(dtype)}-{label}", make, {}, offset)
    make = partial(_in_order, maker, arguments=(*ROWS[0][1:4], SIZES[1], to_dtype("int32")))
    yield Sample(name, "float16-int32-indices", make)


def _in_order(maker: Any, rng: Generator, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return maker(rng, *arguments)  # type: ignore[no-any-return]


SAMPLES = {
    "ConcatTraining": tuple(_concat()),
    "FlattenAndUnpad": tuple(_rows("FlattenAndUnpad", _selected)),
    "PadAndUnflatten": tuple(_rows("PadAndUnflatten", _packed)),
    "SliceGrad": tuple(_slice()),
    "SplitTraining": tuple(_split()),
    "View": tuple(_view()),
}
