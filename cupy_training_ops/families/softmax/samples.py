# SPDX-License-Identifier: MIT
"""Sample inputs of softmax and its gradients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ...dtypes import FLOAT32, FLOATS, dtype_name
from ...samples import Generator, Sample, Shape
from . import reference as cpu
from .operators import OPS

NAN, INF = np.nan, np.inf

# label, shape, axis (None: the default), offset. Rows of 1,500 and more take a block each, "large"
# several batches of one; "row-edges" begin and end off 16 bytes.
CALLS: tuple[tuple[str, Shape, int | None, int], ...] = (
    ("odd", (3, 5, 7), None, 0),
    ("first", (4, 2, 128), 0, 0),
    ("middle", (3, 37, 24), 1, 0),
    ("deep-middle", (2, 1100, 5), -2, 0),
    ("empty", (0, 4), None, 0),
    ("empty-axis", (4, 0), None, 0),
    ("one", (1, 1), None, 0),
    ("misaligned", (3, 1003), None, 1),
    ("large", (2, 40_007), None, 0),
    ("row-edges", (5, 1025), None, 0),
    ("rows", (3, 1500), None, 0),
    ("full-rows", (9, 1024), None, 0),
    ("narrow", (300, 3), None, 0),
)
SPECIALS: tuple[tuple[float, ...], ...] = (
    (NAN, 0, 1),
    (INF, 0, 1),
    (-INF, 0, 1),
    (-INF, -INF, -INF),
    (INF, -INF, INF),
    (1e4, 1e4 - 1, -1e4),
    (-300, -301, -302),
)


def logits(rng: Generator, shape: Shape, dtype: Any) -> Any:
    """Return random normal numbers of deviation 2, whose softmax is neither flat nor one-hot."""
    return np.asarray(2 * rng.standard_normal(shape)).astype(dtype)


def inputs(rng: Generator, name: str, shape: Shape, dtype: Any, axis: int = -1) -> tuple[Any, ...]:
    """Return X; or, for a gradient, dY and the softmax or its logarithm of random numbers."""
    x = logits(rng, shape, dtype)
    if not name.partition("_")[0].endswith("Grad"):
        return (x,)
    forward = cpu.log_softmax if name.startswith("Log") else cpu.softmax
    return logits(rng, shape, dtype), forward(x, axis=axis)


def _special(rng: Generator, dtype: Any) -> tuple[Any, ...]:
    """Return X with SPECIALS at columns 0 and 31 of lines, and a line of -inf alone."""
    values = np.array(SPECIALS).astype(dtype)
    x = logits(rng, (2 * len(values) + 1, 67), dtype)
    x[: len(values), :3] = values
    x[len(values) : -1, 31:34] = values
    x[-1] = -INF
    return (x,)


def _calls(name: str, number: int) -> Iterator[Sample]:
    """Yield an ordinary sample of each dtype; CALLS in two each, in turn from `number` on."""
    for dtype in FLOATS:
        make = partial(inputs, name=name, shape=(16, 64), dtype=dtype)
        yield Sample(name, f"{dtype_name(dtype)}-ordinary", make)
    for i, (label, shape, axis, offset) in enumerate(CALLS):
        attributes = {} if axis is None else {"axis": axis}
        for dtype in (FLOATS[(i + number) % 4], FLOATS[(i + number + 1) % 4]):
            make = partial(inputs, name=name, shape=shape, dtype=dtype, axis=axis or -1)
            yield Sample(name, f"{dtype_name(dtype)}-{label}", make, attributes, offset)


def _samples(name: str, number: int) -> Iterator[Sample]:
    """Yield the samples of operator `name`, with special values for the forwards.

    number: its place among all, from which the dtypes of CALLS go round.
    """
    yield from _calls(name, number)
    if name in ("Softmax", "LogSoftmax"):
        for dtype in (FLOAT32, *FLOATS[2:]):
            yield Sample(name, f"{dtype_name(dtype)}-special", partial(_special, dtype=dtype))


SAMPLES = {name: tuple(_samples(name, i)) for i, name in enumerate(OPS)}
