# SPDX-License-Identifier: MIT
"""Sample inputs of sums, norms and finiteness checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name
from ...samples import SHAPES_OF_LISTS, Generator, Sample, Shape, rounding_of_sums
from .operators import ReduceSumTraining

NAN, INF = np.nan, np.inf

# label, shape, axes, attributes, offset; "large" and "columns" are divided among blocks
SUMS: tuple[tuple[str, Shape, Shape, dict[str, Any], int], ...] = (
    ("odd", (3, 5, 7), (0, 2), {}, 0),
    ("upstream", (3, 2, 2), (0, 2), {}, 0),
    ("empty", (0, 4), (1,), {}, 0),
    ("empty-sum", (4, 0, 3), (1,), {}, 0),
    ("one", (1,), (), {}, 0),
    ("scalar", (), (), {}, 0),
    ("misaligned", (1003,), (0,), {}, 1),
    ("misaligned-columns", (67, 16), (0,), {"keepdims": False}, 1),
    ("large", (5, 40_009), (1,), {}, 0),
    ("short-rows", (700, 3), (1,), {"keepdims": False}, 0),
    ("rows", (300, 203), (-1,), {}, 0),
    ("long-rows", (3, 3000), (1,), {}, 0),
    ("columns", (4001, 24), (0,), {}, 0),
    ("narrow-columns", (3001, 3), (0,), {}, 0),
    ("wide-columns", (3, 4808), (0,), {}, 0),
    ("slabs", (50, 9, 6), (1,), {"keepdims": False}, 0),
    ("mixed", (2, 3, 1, 4, 1, 5), (0, 2, 4), {}, 0),
    ("two-apart", (6, 5, 70, 8), (0, 2), {}, 0),
    ("all-axes", (3, 4, 5), (), {"keepdims": False}, 0),
    ("no-axes", (5, 72), (), {"noop_with_empty_axes": True}, 0),
    ("negative", (1, 2, 2), (-2,), {"keepdims": False}, 0),
)
SPECIALS = (NAN, INF, -INF, -0.0, 1e-40, -1e-45)

# Type combinations of upstream, and float64.
NORMS = (
    (FLOAT32, FLOAT32), (FLOAT16, FLOAT32), (FLOAT32, FLOAT16), (FLOAT16, FLOAT16),
    (BFLOAT16, FLOAT32), (FLOAT32, BFLOAT16), (BFLOAT16, BFLOAT16), (FLOAT64, FLOAT64),
)  # fmt: skip
# label, shapes, offset; "many" takes three launches
LISTS: tuple[tuple[str, tuple[Shape, ...], int], ...] = (
    *SHAPES_OF_LISTS,
    ("large", ((3, 20_011), (7,), (70_000,)), 0),
    ("many", tuple((i % 6,) for i in range(470)), 0),
)
# label, a value among finite ones, attributes
FINITE: tuple[tuple[str, float, dict[str, Any]], ...] = (
    ("finite", 1e-45, {}),
    ("inf", INF, {}),
    ("minus-inf", -INF, {"isinf_only": True}),
    ("inf-for-nan", INF, {"isnan_only": True}),
    ("nan", NAN, {}),
    ("nan-for-inf", NAN, {"isinf_only": True}),
    ("nan-alone", -NAN, {"isnan_only": True}),
)


def numbers(rng: Generator, shape: Shape, dtype: Any) -> Any:
    """Return random normal numbers, or integers of the dtype's whole range."""
    if dtype in FLOATS:
        return np.asarray(rng.standard_normal(shape)).astype(dtype)
    limits = np.iinfo(dtype)
    return np.asarray(rng.integers(limits.min, limits.max, shape, dtype, endpoint=True))


def _data_and_axes(rng: Generator, shape: Shape, axes: Shape, dtype: Any) -> tuple[Any, ...]:
    """Return ReduceSumTraining's inputs: random data of `shape`, and the axes."""
    return numbers(rng, shape, dtype), axes


def _slack(inputs: Sequence[Any], keepdims: bool = True) -> tuple[Any, ...]:
    """Return how far each sum may be off by rounding, in the output's shape; inputs: data, axes."""
    data, axes = inputs
    sums = rounding_of_sums(data, axes, data.dtype)
    return (np.expand_dims(sums, axes) if keepdims else sums,)


def _special(rng: Generator, dtype: Any) -> tuple[Any, ...]:
    """Return rows with one of SPECIALS each, one of -0.0 alone, one with all; axes (1,)."""
    values = np.array(SPECIALS).astype(dtype)
    data = numbers(rng, (values.size + 2, 33), dtype)
    data[np.arange(values.size), rng.integers(0, 33, values.size)] = values
    data[-2] = values[3]
    data[-1, : values.size] = values
    return data, (1,)


def _tensor_list(
    rng: Generator, shapes: tuple[Shape, ...], dtype: Any, scale: float = 1.0
) -> tuple[Any, ...]:
    """Return a list of random tensors of these shapes, with numbers of size `scale`."""
    return ([(scale * numbers(rng, s, FLOAT64)).astype(dtype) for s in shapes],)


def _with(rng: Generator, value: float, dtype: Any) -> tuple[Any, ...]:
    """Return a list of three tensors, with `value` at a random place of the second."""
    (xs,) = _tensor_list(rng, ((40, 7), (999,), (0, 3)), dtype)
    with np.errstate(all="ignore"):
        xs[1][rng.integers(0, 999)] = np.array(value).astype(dtype)
    return (xs,)


def _bools(_rng: Generator, n: int, false: int | None) -> tuple[Any, ...]:
    """Return n bools, all True but the one numbered `false`, if there is one."""
    x = np.ones(n, np.bool_)
    if false is not None:
        x[false] = False
    return (x,)


def _sums() -> Iterator[Sample]:
    """Yield samples of ReduceSumTraining: each type, and each shape and axes in three of them."""
    name, dtypes = "ReduceSumTraining", ReduceSumTraining.types["T"]
    for dtype in dtypes:
        make = partial(_data_and_axes, shape=(16, 64), axes=(1,), dtype=dtype)
        yield Sample(name, f"{dtype_name(dtype)}-ordinary", make)
    for i, (label, shape, axes, attributes, offset) in enumerate(SUMS):
        for dtype in (dtypes[i % 6], dtypes[(i + 1) % 6], dtypes[(i + 3) % 6]):
            make = partial(_data_and_axes, shape=shape, axes=axes, dtype=dtype)
            slack = partial(_slack, **attributes) if axes and dtype in FLOATS else None
            label_of_type = f"{dtype_name(dtype)}-{label}"
            yield Sample(name, label_of_type, make, attributes, offset, slack=slack)
    for dtype in FLOATS:
        yield Sample(name, f"{dtype_name(dtype)}-special", partial(_special, dtype=dtype))


def _norms() -> Iterator[Sample]:
    """Yield samples of ReduceAllL2: each pair of types, list of shapes, and special values."""
    name = "ReduceAllL2"
    for x, y in NORMS:
        types, attributes = f"{dtype_name(x)}-{dtype_name(y)}", {"output_type": y}
        ordinary = partial(_tensor_list, shapes=((16, 64), (7, 33)), dtype=x)
        yield Sample(name, f"{types}-ordinary", ordinary, attributes)
    for i, (label, shapes, offset) in enumerate(LISTS):
        for dtype in (FLOATS[i % 4], FLOATS[(i + 1) % 4]):
            make = partial(_tensor_list, shapes=shapes, dtype=dtype)
            yield Sample(name, f"{dtype_name(dtype)}-{label}", make, {}, offset)
    make = partial(_tensor_list, shapes=((500, 5), (40,)), dtype=FLOAT16, scale=400.0)
    yield Sample(name, "float16-above-256", make)
    yield Sample(name, "float32-infinite", partial(_with, value=1e20, dtype=FLOAT32))
    for value in (NAN, -INF, 1e-45):
        yield Sample(name, f"bfloat16-{value}", partial(_with, value=value, dtype=BFLOAT16))


def _finite() -> Iterator[Sample]:
    """Yield samples of IsAllFinite: each value and attribute in each type, lists of shapes."""
    name = "IsAllFinite"
    for dtype in FLOATS:
        for label, value, attributes in FINITE:
            make = partial(_with, value=value, dtype=dtype)
            yield Sample(name, f"{dtype_name(dtype)}-{label}", make, attributes)
    ordinary = partial(_tensor_list, shapes=((16, 64), (7, 33)), dtype=FLOAT32)
    yield Sample(name, "float32-ordinary", ordinary)
    for i, (label, shapes, offset) in enumerate(LISTS):
        make = partial(_tensor_list, shapes=shapes, dtype=FLOATS[i % 4])
        yield Sample(name, f"{dtype_name(FLOATS[i % 4])}-{label}", make, {}, offset)


def _all() -> Iterator[Sample]:
    """Yield samples of All: n bools, of which one, numbered `false`, is False."""
    name = "All"
    for label, n, false, offset in (
        ("ordinary", 1024, None, 0),
        ("odd", 1003, 1002, 0),
        ("first", 77, 0, 0),
        ("empty", 0, None, 0),
        ("one", 1, None, 0),
        ("one-false", 1, 0, 0),
        ("misaligned", 5001, None, 1),
        ("misaligned-false", 5001, 2500, 3),
        ("large", 500_009, None, 0),
        ("large-false", 500_009, 400_000, 0),
    ):
        yield Sample(name, label, partial(_bools, n=n, false=false), {}, offset)


SAMPLES = {
    "All": tuple(_all()),
    "IsAllFinite": tuple(_finite()),
    "ReduceAllL2": tuple(_norms()),
    "ReduceSumTraining": tuple(_sums()),
}
