# SPDX-License-Identifier: MIT
"""Sample inputs of layer normalisations and their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ...dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, dtype_name
from ...samples import Generator, Sample, Shape
from . import reference as cpu
from .operators import OPS

NAN, INF = np.nan, np.inf

# T and V: the types of X and of Y.
TYPES = (
    (FLOAT32, FLOAT32),
    (FLOAT64, FLOAT64),
    (FLOAT16, FLOAT16),
    (BFLOAT16, BFLOAT16),
    (FLOAT32, FLOAT16),
    (FLOAT32, BFLOAT16),
    (FLOAT16, FLOAT32),
    (BFLOAT16, FLOAT32),
)
# label, shape, axis (None: the default), offset. "large" has more rows of a part of a warp than are
# held at a time, "elements" more that are not aligned; rows of "long" do not fit on chip.
CALLS: tuple[tuple[str, Shape, int | None, int], ...] = (
    ("odd", (3, 5, 7), None, 0),
    ("two-axes", (4, 3, 8, 16), -2, 0),
    ("first", (3, 8), 0, 0),
    ("empty", (0, 4), None, 0),
    ("empty-rows", (4, 0), None, 0),
    ("one", (1, 1), None, 0),
    ("single", (5, 1), None, 0),
    ("misaligned", (3, 1003), None, 1),
    ("block", (9, 2048), None, 0),
    ("long", (2, 17_001), None, 0),
    ("elements", (150, 35), None, 0),
    ("large", (600, 256), None, 0),
)
SPECIALS: tuple[tuple[float, ...], ...] = (
    (NAN, 0, 1),
    (INF, 0, 1),
    (0, -INF, 1),
    (INF, -INF, 1),
    (1e4, -1e4, 1e4),
)


def normal(rng: Generator, shape: Shape, dtype: Any, center: float = 0) -> Any:
    """Return random normal numbers about `center`."""
    return np.asarray(center + rng.standard_normal(shape)).astype(dtype)


def inputs(
    rng: Generator,
    name: str,
    shape: Shape,
    types: tuple[Any, Any],
    axis: int | None = None,
    dead: int = 0,
) -> tuple[Any, ...]:
    """Return the inputs of an operator; the first `dead` columns have a scale of 0.

    types: of X and of Y.
    """
    t, v = types
    axis = -1 if axis is None else axis
    row = shape[axis % len(shape) :]
    x, scale = normal(rng, shape, t, 0.5), normal(rng, row, v, 1)
    scale.reshape(-1)[:dead] = 0
    bias, dy = normal(rng, row, v), normal(rng, shape, v)
    rows: dict[str, Any] = {"axis": axis, "epsilon": 1e-5}
    if name == "LayerNormalization":
        return x, scale, bias
    if name == "SimplifiedLayerNormalization":
        return x, scale
    if name == "SimplifiedLayerNormalizationGrad":
        return dy, x, scale, cpu.simplified_layer_normalization(x, scale, **rows)[1]
    y, mean, inv_std = cpu.layer_normalization(x, scale, bias, **rows, stash_type=1)
    if name == "InvertibleLayerNormalizationGrad":
        return dy, y, scale, bias, inv_std
    return dy, x, scale, mean, inv_std


def _special(rng: Generator, name: str, types: tuple[Any, Any]) -> tuple[Any, ...]:
    """Return inputs, the first with SPECIALS at columns 0 and 31 of rows, and two constant rows.

    types: the dtypes of X and of Y.
    """
    shape = (2 * len(SPECIALS) + 2, 67)
    first, *others = inputs(rng, name, shape, types)
    # What a gradient makes of large elements and small ones has few digits.
    specials = SPECIALS[:-1] if name.endswith("Grad") else SPECIALS
    values = np.array(specials).astype(first.dtype)
    first[: len(values), :3] = values
    first[len(values) : 2 * len(values), 31:34] = values
    first[-2], first[-1] = 3, 0
    return first, *others


def _attributes(name: str, types: tuple[Any, Any], axis: int | None) -> dict[str, Any]:
    """Return the axis, unless it is None, and the output_type of the operator that has one."""
    values: dict[str, Any] = {} if axis is None else {"axis": axis}
    if name == "InvertibleLayerNormalizationGrad":
        values["output_type"] = types[0]
    return values


def _label(types: tuple[Any, Any], label: str) -> str:
    """Return a sample's label: the types of X and Y, then `label`."""
    return "-".join([*(dtype_name(t) for t in types), label])


def _samples(name: str, number: int) -> Iterator[Sample]:
    """Yield an ordinary sample of each combination of types, and other shapes of one each.

    number: the operator's place among all, which picks the types of each shape.
    """
    for types in TYPES:
        make = partial(inputs, name=name, shape=(16, 64), types=types)
        yield Sample(name, _label(types, "ordinary"), make, _attributes(name, types, None))
    for i, (label, shape, axis, offset) in enumerate(CALLS):
        types = TYPES[(i + 3 * number) % len(TYPES)]
        make = partial(inputs, name=name, shape=shape, types=types, axis=axis)
        attributes = _attributes(name, types, axis)
        yield Sample(name, _label(types, label), make, attributes, offset)
    for types in TYPES[:1] + TYPES[2:4]:
        make = partial(_special, name=name, types=types)
        yield Sample(name, _label(types, "special"), make)


def _more() -> Iterator[Sample]:
    """Yield samples with dead columns, without bias, and of rows that other kernels take."""
    name = "InvertibleLayerNormalizationGrad"
    for label, shape in (("ordinary", (9, 64)), ("odd", (9, 35)), ("long", (2, 17_001))):
        make = partial(inputs, name=name, shape=shape, types=TYPES[0], dead=3)
        yield Sample(name, f"{label}-dead", make)
    yield Sample("LayerNormalization", "no-bias", _without_bias)
    for name in filter(lambda name: name.endswith("Grad"), OPS):
        for label, shape, types in (
            ("warps", (9, 1000), TYPES[2]),
            ("many-warps", (7, 4096), TYPES[3]),
            ("shifted-warps", (19, 1019), TYPES[2]),
        ):
            make = partial(inputs, name=name, shape=shape, types=types, dead=3)
            yield Sample(name, _label(types, label), make, _attributes(name, types, None))
    for name in ("LayerNormalization", "SimplifiedLayerNormalization"):
        for label, length in (("deep", 8192), ("deep-odd", 5001), ("wide", 17_000)):
            make = partial(inputs, name=name, shape=(2, length), types=TYPES[0])
            yield Sample(name, label, make)


def _without_bias(rng: Generator) -> tuple[Any, ...]:
    """Return LayerNormalization's inputs without B."""
    return inputs(rng, "SimplifiedLayerNormalization", (7, 64), TYPES[2])


SAMPLES = {
    name: (*_samples(name, i), *(sample for sample in _more() if sample.op == name))
    for i, name in enumerate(OPS)
}
