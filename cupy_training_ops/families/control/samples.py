# SPDX-License-Identifier: MIT
"""Sample inputs of control flow. Events have the number -1: a record waits for its wait.

YieldOp has none: it is called where SplitStep runs a function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ...device.streams import NO_EVENT
from ...dtypes import FIXED_SIZE, FLOAT32, Dtype
from ...samples import Generator, Sample, Shape
from ..tensor.samples import values

# label, shapes of a list's arrays, offset from a 16-byte boundary in elements; types: `type_of`
LISTS: tuple[tuple[str, tuple[Shape, ...], int], ...] = (
    ("ordinary", ((4, 8),) * len(FIXED_SIZE), 0),
    ("odd", ((3, 5, 7), (), (1003,)), 0),
    ("empty", ((0, 4), (2, 3)), 0),
    ("one", ((1,),), 0),
    ("misaligned", ((133,), (7, 19)), 1),
    ("large", ((5, 4099), (5, 1640)), 0),
)
WITH_EVENTS = ("RecordEvent", "WaitEvent")
SHORT: Mapping[str, Any] = {"timeout": 0.01}  # of a wait for what is never recorded


def type_of(i: int) -> Dtype:
    """Return the type of the i-th array of a list: float32, then every other type in turn."""
    types = (FLOAT32, *(dtype for dtype in FIXED_SIZE if dtype != FLOAT32))
    return types[i % len(types)]


def arrays(rng: Generator, shapes: Sequence[Shape]) -> list[Any]:
    """Return arrays of these shapes and of several types."""
    return [values(rng, shape, type_of(i)) for i, shape in enumerate(shapes)]


def _inputs(rng: Generator, name: str, shapes: Sequence[Shape]) -> tuple[Any, ...]:
    data = arrays(rng, shapes)
    return (NO_EVENT, data) if name in WITH_EVENTS else (data,)


def _samples(name: str) -> Iterator[Sample]:
    """Yield the samples of the operator of this name, one for each of LISTS, and one of events."""
    own = SHORT if name == "WaitEvent" else {}
    for label, shapes, offset in LISTS:
        yield Sample(name, label, partial(_inputs, name=name, shapes=shapes), own, offset)
    if name in WITH_EVENTS:
        make = partial(_inputs, name=name, shapes=((4, 8), (3,)))
        yield Sample(name, "order-alone", make, {**own, "num_outputs": 1})


SAMPLES = {
    "Group": tuple(_samples("Group")),
    "PassThrough": tuple(_samples("PassThrough")),
    "RecordEvent": tuple(_samples("RecordEvent")),
    "WaitEvent": tuple(_samples("WaitEvent")),
    "YieldOp": (),
}
