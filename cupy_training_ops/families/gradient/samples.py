# SPDX-License-Identifier: MIT
"""Sample inputs of gradient bookkeeping.

In makers of inputs t and `value` are the dtypes of a sum and of what is added to it; shapes are
those of a list's arrays, one for each; flag: (update signal,), or () to leave it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ...dtypes import BFLOAT16, FIXED_SIZE, FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name
from ...samples import SHAPES, SHAPES_OF_LISTS, Generator, Sample, Shape
from ..tensor.samples import values

# Types of sum and value: those of ONNX Runtime's InPlaceAccumulator, and two with float64.
PAIRS = (
    (FLOAT32, FLOAT32), (FLOAT32, FLOAT16), (FLOAT16, FLOAT16), (FLOAT16, FLOAT32),
    (FLOAT32, BFLOAT16), (BFLOAT16, BFLOAT16), (BFLOAT16, FLOAT32),
    (FLOAT64, FLOAT64), (FLOAT16, FLOAT64),
)  # fmt: skip
# label, shapes, elements that arrays are off alignment; "many" takes three launches
LISTS: tuple[tuple[str, tuple[Shape, ...], int], ...] = (
    *SHAPES_OF_LISTS,
    ("large", ((3, 5011), (7,), (9_000,)), 0),
    ("many", tuple((i % 6,) for i in range(290)), 0),
)
ORDINARY = ((16, 64), (7, 33))
SPECIALS = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 6e-8, 65504.0, -65504.0, 3e38)


def special(dtype: Any) -> Any:
    """Return SPECIALS in `dtype`; what it does not hold becomes infinite."""
    with np.errstate(all="ignore"):
        return np.array(SPECIALS).astype(dtype)


def _pair(
    rng: Generator, t: Any, value: Any, shape: Shape = (16, 64), flag: tuple[bool, ...] = ()
) -> tuple[Any, ...]:
    """Return a sum of type t, a value of type `value` to add, and the items of `flag`.

    flag: (update signal or overwrite flag,), or ().
    """
    return values(rng, shape, t), values(rng, shape, value), *flag


def _special_pair(_rng: Generator, t: Any, value: Any) -> tuple[Any, ...]:
    """Return a sum and a value in which every special value meets every other."""
    n = len(SPECIALS)
    return np.repeat(special(t), n).reshape(n, n), np.tile(special(value), (n, 1))


def _list_pair(
    rng: Generator,
    t: Any,
    value: Any,
    shapes: tuple[Shape, ...] = ORDINARY,
    flag: tuple[bool, ...] = (),
) -> tuple[Any, ...]:
    """Return a list of sums of type t, one of values to add, and the items of `flag`."""
    old_sums, added = ([values(rng, shape, d) for shape in shapes] for d in (t, value))
    return old_sums, added, *flag


def _to_clear(rng: Generator, shape: Shape, t: Any, signal: Any) -> tuple[Any, ...]:
    """Return ZeroGradient's inputs: a gradient of type t, a signal of type `signal`."""
    return values(rng, shape, t), values(rng, (3,), signal)


def _to_scale(rng: Generator, shapes: tuple[Shape, ...], dtype: Any) -> tuple[Any, ...]:
    """Return MixedPrecisionScale's inputs: a random scale, and tensors of `dtype`."""
    s = np.array(rng.uniform(0.5, 3), FLOAT32)
    return s, [values(rng, shape, dtype) for shape in shapes]


def _special_scaled(rng: Generator, dtype: Any) -> tuple[Any, ...]:
    """Return MixedPrecisionScale's inputs: a random scale, and a list of one array of SPECIALS."""
    return np.array([rng.uniform(0.5, 3)], FLOAT32), [special(dtype)]


def _accumulators(name: str, flagged: bool) -> Iterator[Sample]:
    """Yield samples of operator `name`, which adds to one array.

    flagged: the value of its optional flag, in samples that pass it.
    """
    for t, value in PAIRS:
        types = f"{dtype_name(t)}-{dtype_name(value)}"
        yield Sample(name, f"{types}-ordinary", partial(_pair, t=t, value=value))
        yield Sample(name, f"{types}-special", partial(_special_pair, t=t, value=value))
        yield Sample(name, f"{types}-flagged", partial(_pair, t=t, value=value, flag=(flagged,)))
    for i, (label, shape, offset) in enumerate(SHAPES[1:]):
        for t, value in (PAIRS[i % 9], PAIRS[(i + 3) % 9]):
            types = f"{dtype_name(t)}-{dtype_name(value)}"
            make = partial(_pair, shape=shape, t=t, value=value)
            yield Sample(name, f"{types}-{label}", make, {}, offset)


def _accumulator_lists() -> Iterator[Sample]:
    """Yield samples of InPlaceAccumulatorList: each pair of types, each list of shapes."""
    name = "InPlaceAccumulatorList"
    for t, value in PAIRS:
        types = f"{dtype_name(t)}-{dtype_name(value)}"
        yield Sample(name, f"{types}-ordinary", partial(_list_pair, t=t, value=value))
    for i, (label, shapes, offset) in enumerate(LISTS):
        t, value = PAIRS[i]
        make = partial(_list_pair, t=t, value=value, shapes=shapes)
        yield Sample(name, f"{dtype_name(t)}-{dtype_name(value)}-{label}", make, {}, offset)
    make = partial(_list_pair, t=FLOAT32, value=FLOAT16, flag=(False,))
    yield Sample(name, "float32-float16-not-updated", make)


def _zeros() -> Iterator[Sample]:
    """Yield samples of ZeroGradient: each type of the signal, each shape in two types."""
    name = "ZeroGradient"
    for signal in FIXED_SIZE:
        make = partial(_to_clear, shape=(16, 64), t=FLOAT32, signal=signal)
        yield Sample(name, f"float32-{dtype_name(signal)}-ordinary", make)
    for i, (label, shape, offset) in enumerate(SHAPES):
        for t in (FLOATS[i % 4], FLOATS[(i + 1) % 4]):
            make = partial(_to_clear, shape=shape, t=t, signal=FLOAT32)
            yield Sample(name, f"{dtype_name(t)}-{label}", make, {}, offset)


def _scales() -> Iterator[Sample]:
    """Yield samples of MixedPrecisionScale.

    Each pair of types (that of the tensors, attribute `to`), with ordinary and special values; then
    each list of shapes, whose arrays begin `offset` elements past a 16-byte boundary, with results
    apart and fused to one array.
    """
    name = "MixedPrecisionScale"
    up_to_32_bits = (FLOAT32, FLOAT16, BFLOAT16)
    pairs = [(x, y) for x in up_to_32_bits for y in up_to_32_bits] + [
        (FLOAT64, FLOAT32),
        (FLOAT32, FLOAT64),
    ]
    for x, y in pairs:
        types = f"{dtype_name(x)}-{dtype_name(y)}"
        make = partial(_to_scale, shapes=ORDINARY, dtype=x)
        yield Sample(name, f"{types}-ordinary", make, {"to": y})
        yield Sample(name, f"{types}-special", partial(_special_scaled, dtype=x), {"to": y})
    for i, (label, shapes, offset) in enumerate(LISTS):
        x, y = pairs[i]
        make = partial(_to_scale, shapes=shapes, dtype=x)
        types = f"{dtype_name(x)}-{dtype_name(y)}"
        yield Sample(name, f"{types}-{label}", make, {"to": y}, offset)
        fused = {"to": y, "fuse_outputs": True}
        yield Sample(name, f"{types}-fused-{label}", make, fused, offset)


SAMPLES = {
    "InPlaceAccumulator": tuple(_accumulators("InPlaceAccumulator", False)),
    "InPlaceAccumulatorList": tuple(_accumulator_lists()),
    "InPlaceAccumulatorV2": tuple(_accumulators("InPlaceAccumulatorV2", True)),
    "MixedPrecisionScale": tuple(_scales()),
    "ZeroGradient": tuple(_zeros()),
}
