# SPDX-License-Identifier: MIT
"""Sample inputs of the gather operators' gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...dtypes import FLOAT32, FLOATS, INT64, Dtype, dtype_name
from ...samples import Generator, Sample

INT32 = np.dtype(np.int32)


class Case(NamedTuple):
    """One call: shapes of X and the indices; `offset`: elements that arrays are off alignment."""

    label: str
    shape: tuple[int, ...]
    indices: tuple[int, ...]
    attributes: Mapping[str, Any] = {}
    offset: int = 0


# The first ON_EVERY_TYPE run with every type combination.
GATHER: tuple[Case, ...] = (
    Case("ordinary", (40, 64), (100,)),
    Case("odd", (3, 47, 15), (4, 9), {"axis": 1}),
    Case("misaligned", (26, 64), (41,), {}, 1),
    Case("nondeterministic", (29, 5, 40), (5, 3), {"axis": -2, "deterministic": False}),
    Case("empty", (0, 4), (0,)),
    Case("no-indices", (5, 3), (0, 2)),
    Case("no-columns", (5, 0), (2,)),
    Case("one", (1,), (1,)),
    Case("scalar-index", (3, 4), (), {"axis": 1}),
    Case("one-row", (1, 8), (300,)),
    Case("few", (6, 4, 3), (2, 7), {"axis": 1}),
    Case("last-axis", (70, 13), (31,), {"axis": 1}),
    Case("wide", (3, 2304), (7,)),
    Case("wide-odd", (2, 4, 301), (9,), {"axis": 1}),
    Case("wide-rows", (2, 45, 256), (70,), {"axis": 1}),
    Case("large", (1500, 8), (9000,)),
)
GATHER_ND: tuple[Case, ...] = (
    Case("ordinary", (9, 8, 16), (60, 2)),
    Case("odd", (3, 9, 7, 13), (3, 13, 2), {"batch_dims": 1}),
    Case("misaligned", (40, 52), (33, 1), {}, 1),
    Case(
        "nondeterministic-misaligned",
        (2, 36, 50),
        (2, 15, 1),
        {"batch_dims": 1, "deterministic": False},
        1,
    ),
    Case("empty", (0, 4), (0, 1)),
    Case("no-indices", (5, 3), (0, 2)),
    Case("one", (1,), (1, 1)),
    Case("one-index", (4, 5), (2,)),
    Case("few", (2, 4, 3, 2), (2, 9, 2), {"batch_dims": 1}),
    Case("elements", (4, 3, 5), (90, 3)),
    Case("all-batches", (2, 2, 3), (2, 2, 7, 1), {"batch_dims": 2}),
    Case("large", (60, 50, 4), (5000, 2)),
)
GATHER_ELEMENTS: tuple[Case, ...] = (
    Case("ordinary", (30, 64), (25, 64)),
    Case("odd", (5, 7, 11), (4, 19, 9), {"axis": 1}),
    Case("misaligned", (26, 16), (29, 16), {}, 1),
    Case("nondeterministic", (20, 70), (33, 67), {"deterministic": False}),
    Case("nondeterministic-last", (6, 90), (5, 60), {"axis": -1, "deterministic": False}),
    Case("nondeterministic-deep", (3, 5, 4, 6), (2, 5, 3, 19), {"axis": 3, "deterministic": False}),
    Case("empty", (0, 4), (0, 4)),
    Case("no-indices", (5, 3), (0, 3)),
    Case("no-indices-nondeterministic", (5, 3), (5, 0), {"axis": 1, "deterministic": False}),
    Case("one", (1,), (1,)),
    Case("vector", (11,), (300,)),
    Case("few", (3, 5, 4), (2, 9, 4), {"axis": 1}),
    Case("large", (130, 40), (150, 40)),
    Case("long", (1025, 1024), (1025, 1024), {"axis": 1}),
    Case("columns", (1100, 1025), (1024, 1025)),
)
ON_EVERY_TYPE = 4


def _indices(rng: Generator, shape: tuple[int, ...], extent: Any, dtype: Any) -> Any:
    """Return random indices into `extent`: about half are negative, 3% out of range.

    extent: a number, or an array with one for each entry of the last axis.
    """
    extent = np.maximum(extent, 1)
    indices = rng.integers(-extent, extent, shape)
    out_of_range = rng.random(shape) < 0.03
    return np.where(out_of_range, extent + 2, indices).astype(dtype)


def _values(rng: Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return random normal numbers."""
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def _gather(rng: Generator, case: Case, dtype: Any, index: Any) -> tuple[Any, ...]:
    """Return GatherGrad's inputs for `case`; dtype: of dY, index: of the indices."""
    axis = case.attributes.get("axis", 0) % len(case.shape)
    indices = _indices(rng, case.indices, case.shape[axis], index)
    dy = _values(rng, (*case.shape[:axis], *case.indices, *case.shape[axis + 1 :]), dtype)
    return case.shape, indices, dy


def _gather_nd(rng: Generator, case: Case, dtype: Any, index: Any) -> tuple[Any, ...]:
    """Return GatherNDGrad's inputs for `case`; dtype: of update (dY), index: of the indices."""
    b, k = case.attributes.get("batch_dims", 0), case.indices[-1]
    indices = _indices(rng, case.indices, np.array(case.shape[b : b + k]), index)
    return case.shape, indices, _values(rng, case.indices[:-1] + case.shape[b + k :], dtype)


def _gather_elements(rng: Generator, case: Case, dtype: Any, index: Any) -> tuple[Any, ...]:
    """Return GatherElementsGrad's inputs for `case`; dtype: of dY, index: of the indices."""
    axis = case.attributes.get("axis", 0)
    indices = _indices(rng, case.indices, case.shape[axis], index)
    return _values(rng, case.indices, dtype), case.shape, indices


# The cases of each operator, and the function that makes their inputs.
FAMILY = {
    "GatherElementsGrad": (GATHER_ELEMENTS, _gather_elements),
    "GatherGrad": (GATHER, _gather),
    "GatherNDGrad": (GATHER_ND, _gather_nd),
}


def _samples(name: str) -> Iterator[Sample]:
    """Yield an operator's samples: the first cases in all types, others in float32 and int64."""
    cases, make = FAMILY[name]
    for i, case in enumerate(cases):
        every: Iterable[tuple[Dtype, Dtype]] = itertools.product(FLOATS, (INT64, INT32))
        for dtype, index in every if i < ON_EVERY_TYPE else [(FLOAT32, INT64)]:
            label = f"{dtype_name(dtype)}-{dtype_name(index)}-{case.label}"
            inputs = partial(make, case=case, dtype=dtype, index=index)
            yield Sample(name, label, inputs, case.attributes, case.offset)


SAMPLES = {name: tuple(_samples(name)) for name in FAMILY}
