# SPDX-License-Identifier: MIT
"""Sample inputs of slicing, padding and unpadding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...dtypes import FIXED_SIZE, INT64, dtype_name, to_dtype
from ...samples import Generator, Sample, Shape
from ..tensor.samples import SIZES, values

INT64_MAX = 2**63 - 1

# label, shape, starts, ends, axes, steps, offset
SLICES: tuple[tuple[str, Shape, Shape, Shape, Shape | None, Shape | None, int], ...] = (
    ("ordinary", (8, 64), (16,), (48,), (1,), None, 0),
    ("odd", (5, 7, 67), (1, 3), (4, 66), (0, 2), None, 0),
    ("upstream", (2, 4), (1, 0), (2, 3), (0, 1), (1, 2), 0),
    ("backwards", (2, 2, 2, 2), (1, 1), (0, 2), (0, 1), (-1, 1), 0),
    ("to-the-end", (1, 2, 2, 2, 2), (1,), (INT64_MAX,), (2,), None, 0),
    ("two-apart", (3, 4, 5, 6), (1, 2), (3, 6), (1, 3), (1, 1), 0),
    ("whole-backwards", (9, 33), (INT64_MAX, -1), (-INT64_MAX, -99), None, (-2, -3), 0),
    ("flipped", (2, 150), (120,), (20,), (1,), (-1,), 0),
    ("flipped-whole", (200,), (-1,), (-INT64_MAX,), None, (-1,), 0),
    ("before-the-front", (6, 5), (-9, 0), (3, -1), None, (1, 1), 0),
    ("steps-apart", (4, 6, 5), (0, 5, 1), (4, -7, 5), (2, 1, 0), (3, -4, 2), 0),
    ("nothing", (6, 5), (4,), (2,), (0,), (1,), 0),
    ("empty", (0, 5), (0,), (9,), None, None, 0),
    ("one", (1,), (0,), (1,), None, None, 0),
    ("misaligned", (5, 131), (2,), (125,), (1,), None, 1),
    ("large", (9, 4099), (1, 5), (8, -3), None, None, 0),
    ("rows-of-chunks", (5, 3, 176), (1, 5), (3, 140), (1, 2), None, 0),
    ("long-rows-of-chunks", (9, 2192), (3,), (2166,), (1,), None, 0),
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


def _slice_inputs(
    rng: Generator, shape: Shape, starts: Shape, ends: Shape, axes: Any, steps: Any, dtype: Any
) -> tuple[Any, ...]:
    """Return the inputs of SliceGrad: dY of the shape that the slice has, and the others as passed.

    starts, ends, steps: one for each of `axes`; None: steps of 1, the first axes.
    """
    slices = [slice(None)] * len(shape)
    every = (1,) * len(starts) if steps is None else steps
    for i, axis in enumerate(range(len(starts)) if axes is None else axes):
        slices[axis] = slice(starts[i], ends[i], every[i])
    dy = values(rng, np.empty(shape, bool)[tuple(slices)].shape, dtype)
    return dy, shape, starts, ends, axes, steps


def _unpad_inputs(
    rng: Generator, dims: Shape, rest: Shape, n: int, dtype: Any, index: Any = INT64
) -> tuple[Any, ...]:
    """Return rows, and n random indices into them, of which a few are out of range.

    dims: (M1, M2). rest: shape of a row. index: dtype of the indices.
    """
    indices = rng.integers(-1, dims[0] * dims[1] + 1, n).astype(index)
    return values(rng, (*dims, *rest), dtype), indices


def _pad_inputs(
    rng: Generator, dims: Shape, rest: Shape, n: int, dtype: Any, index: Any = INT64
) -> tuple[Any, ...]:
    """Return n rows, random indices for them, some equal, some out of range, and dims = (M1, M2).

    rest: shape of a row. index: dtype of the indices.
    """
    indices = rng.integers(-1, dims[0] * dims[1] + 1, n).astype(index)
    return values(rng, (n, *rest), dtype), indices, dims


def _samples(name: str, maker: Any, table: Sequence[Any]) -> Iterator[Sample]:
    """Yield a sample for each row (label, *arguments, offset) of `table`.

    Inputs are maker(rng, *arguments, dtype). The first row is in every dtype, others in two each.
    """
    for i, (label, *arguments, offset) in enumerate(table):
        for dtype in (SIZES[i % 5], SIZES[(i + 2) % 5]) if i else FIXED_SIZE:
            make = partial(_in_order, maker, arguments=(*arguments, dtype))
            yield Sample(name, f"{dtype_name(dtype)}-{label}", make, {}, offset)


def _rows(name: str, maker: Any) -> Iterator[Sample]:
    """Yield samples of an operator of rows: each of ROWS, and int32 indices."""
    yield from _samples(name, maker, ROWS)
    make = partial(_in_order, maker, arguments=(*ROWS[0][1:4], SIZES[1], to_dtype("int32")))
    yield Sample(name, "float16-int32-indices", make)


def _in_order(maker: Any, rng: Generator, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return maker(rng, *arguments)."""
    return maker(rng, *arguments)  # type: ignore[no-any-return]


SAMPLES = {
    "FlattenAndUnpad": tuple(_rows("FlattenAndUnpad", _unpad_inputs)),
    "PadAndUnflatten": tuple(_rows("PadAndUnflatten", _pad_inputs)),
    "SliceGrad": tuple(_samples("SliceGrad", _slice_inputs, SLICES)),
}
