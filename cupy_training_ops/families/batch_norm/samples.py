# SPDX-License-Identifier: MIT
"""Sample inputs of batch normalisation and its gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Dtype, dtype_name
from ...samples import Generator, Sample, Shape, rounding_of_sums
from . import reference as cpu

Row = tuple[Dtype, Dtype, Dtype]
ROWS: tuple[Row, ...] = (
    (FLOAT32,) * 3,
    (FLOAT16, FLOAT32, FLOAT32),
    (FLOAT64,) * 3,
    (BFLOAT16, FLOAT32, FLOAT32),
    (FLOAT16,) * 3,
    (FLOAT16, FLOAT16, FLOAT32),
    (BFLOAT16,) * 3,
    (BFLOAT16, BFLOAT16, FLOAT32),
)
INFERENCE = {"training_mode": False}
BIASED = {"unbiased": False, "momentum": 0.25, "epsilon": 0.01}

# label, shape, offset. A block has a channel of "ordinary" in registers, channels of "staged" and
# of "narrow" in shared memory, and the columns of "two"; several blocks share a channel of "large",
# in vectors, of "misaligned", in elements, and the columns of "rows" and "long", which go through
# shared memory in 2-byte types.
CALLS: tuple[tuple[str, Shape, int], ...] = (
    ("odd", (3, 5, 5, 3), 0),
    ("vector", (33,), 0),
    ("two", (37, 19), 0),
    ("pieces", (3, 4, 7, 7), 0),
    ("eight", (2, 3, 1, 2, 2, 1, 2, 4), 0),
    ("empty", (0, 4, 3), 0),
    ("empty-pieces", (2, 3, 0), 0),
    ("one", (1, 1), 0),
    ("one-value", (1, 5), 0),
    ("misaligned", (2, 3, 2051), 1),
    ("misaligned-columns", (9, 11), 1),
    ("large", (2, 2, 9216), 0),
    ("rows", (600, 34), 0),
    ("narrow", (3, 268, 7, 7), 0),
    ("staged", (3, 528, 7, 7), 0),
    ("long", (40_000, 8), 0),
)


FORWARD = ("BatchNormInternal", "BatchNormRelu")


def inputs(rng: Generator, name: str, shape: Shape, row: Row = ROWS[0]) -> tuple[Any, ...]:
    """Return an operator's inputs: X, scale, bias, mean, variance; or of a gradient dY, X, scale,
    saved_mean, saved_inv_std. BatchNormRelu has a residual at the end, its gradient Y after X.

    row: types of X, of scale and bias, of statistics.
    """
    t, t1, t2 = row
    channels = (1 if len(shape) == 1 else shape[1],)
    spread, middle = rng.uniform(0.5, 2, channels), 3 * rng.standard_normal(channels)
    along = (1, *channels, *[1] * (len(shape) - 2)) if len(shape) > 1 else channels
    x = (rng.standard_normal(shape) * spread.reshape(along) + middle.reshape(along)).astype(t)
    scale = rng.uniform(0.5, 1.5, channels).astype(t1)
    image = rng.standard_normal(shape).astype(t)
    if name in FORWARD:
        bias, mean = rng.standard_normal(channels).astype(t1), rng.standard_normal(channels)
        running = mean.astype(t2), rng.uniform(0.5, 2, channels).astype(t2)
        return x, scale, bias, *running, *([image] if name == "BatchNormRelu" else [])
    of_relu = [np.maximum(rng.standard_normal(shape), 0).astype(t)]
    return image, x, *(of_relu if name == "BatchNormReluGrad" else []), scale, *statistics(x, t2)


def mixed_layouts(rng: Generator, shape: Shape, row: Row, place: int) -> tuple[Any, ...]:
    """Return inputs of BatchNormalizationGrad, of which dY (place 0) or X (1) has channels last."""
    arrays = list(inputs(rng, "BatchNormalizationGrad", shape, row))
    arrays[place] = np.moveaxis(np.moveaxis(arrays[place], 1, -1).copy(), -1, 1)
    return tuple(arrays)


def statistics(x: Any, t2: Dtype) -> tuple[Any, Any]:
    """Return saved_mean and saved_inv_std of X, in dtype t2."""
    n_channels = 1 if x.ndim == 1 else x.shape[1]
    zeros = np.zeros(n_channels, t2)
    outputs = cpu.batch_norm_internal(
        x, *[zeros] * 4, epsilon=1e-5, momentum=0.9, training_mode=True, unbiased=True
    )
    return outputs[3], outputs[4]


def _special(rng: Generator, name: str, shape: Shape) -> tuple[Any, ...]:
    """Return inputs with special channels of X (and dY): constant; with NaN, inf or -inf; both."""
    arrays = inputs(rng, name, shape)
    for x in arrays[:1] if name in FORWARD else arrays[:2]:
        flat = np.moveaxis(x, 1, 0).reshape(shape[1], -1).copy()
        flat[0] = 7
        flat[1, 3], flat[2, 0], flat[3, -1] = np.nan, np.inf, -np.inf
        flat[4, :2] = np.inf, -np.inf
        moved = flat.reshape(shape[1], shape[0], *shape[2:])
        x[...] = np.moveaxis(moved, 0, 1)
    return arrays


def _samples(name: str, number: int) -> Iterator[Sample]:
    """Yield an ordinary sample of each combination of types, and other shapes and values.

    Each shape is in some combinations of types, which its place in the list and `number`, the
    operator's place, pick, so that all combinations occur.
    """
    required = {"epsilon": 1e-5} if name == "BatchNormalizationGrad" else {}
    for row in ROWS:
        make = partial(inputs, name=name, shape=(4, 6, 8, 8), row=row)
        yield Sample(name, f"{_types(row)}-ordinary", make, required)
    for i, (label, shape, offset) in enumerate(CALLS):
        for row in (ROWS[(i + number) % 6], ROWS[(i + number + 2 + i % 3) % 6], ROWS[6 + i % 2]):
            make = partial(inputs, name=name, shape=shape, row=row)
            yield Sample(name, f"{_types(row)}-{label}", make, required, offset)
    for label, shape in (("special-pieces", (3, 6, 20)), ("special-columns", (9, 6))):
        yield Sample(name, label, partial(_special, name=name, shape=shape), required)
    if name == "BatchNormInternal":
        yield from _with_attributes(name)
    if name == "BatchNormRelu":
        for i, shape in enumerate(((4, 6, 8, 8), (3, 528, 7, 7), (600, 34), (2, 2, 9216))):
            make = partial(_alone, shape=shape, row=ROWS[i])
            yield Sample(name, f"{_types(ROWS[i])}-alone-{i}", make, BIASED)
    if name != "BatchNormalizationGrad":
        return
    for i, shape in enumerate(((2, 5, 7, 9), (3, 40, 33), (2, 3, 1, 2051))):
        for place, row in ((0, ROWS[i]), (1, ROWS[-1 - i])):
            make = partial(mixed_layouts, shape=shape, row=row, place=place)
            yield Sample(name, f"{_types(row)}-mixed-{place}-{i}", make, required)


def _with_attributes(name: str) -> Iterator[Sample]:
    """Yield samples with training_mode False, and with a biased variance."""
    for i, shape in enumerate(((4, 6, 8, 8), (3, 5, 7), (37, 19))):
        for row in (ROWS[i], ROWS[i + 1]):
            make = partial(inputs, name=name, shape=shape, row=row)
            yield Sample(name, f"{_types(row)}-input-statistics-{len(shape)}", make, INFERENCE)
            yield Sample(name, f"{_types(row)}-biased-{len(shape)}", make, BIASED)


def _alone(rng: Generator, shape: Shape, row: Row) -> tuple[Any, ...]:
    """Return inputs of BatchNormRelu without a residual."""
    return inputs(rng, "BatchNormRelu", shape, row)[:-1]


def _slack_with_relu(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return the tolerances of BatchNormReluGrad: those without relu, of dY where Y > 0."""
    dy, x, y, *others = inputs
    return *_slack((np.where(y <= 0, dy.dtype.type(0), dy), x, *others)), 0.0


def _slack(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return tolerances of X_grad (0), scale_grad and bias_grad, which are sums that cancel.

    inputs: those of BatchNormalizationGrad: dY, X, scale, saved_mean, saved_inv_std.
    """
    shape = inputs[1].shape if inputs[1].ndim > 1 else (inputs[1].size, 1)
    dy, x = (a.reshape(*shape[:2], math.prod(shape[2:])) for a in inputs[:2])
    mean, inv_std = (a.astype(FLOAT64)[:, None] for a in inputs[3:])
    with np.errstate(all="ignore"):
        sums = dy * ((x - mean) * inv_std), dy
    return 0.0, *(rounding_of_sums(terms, (0, 2), x.dtype) for terms in sums)


def _types(row: Row) -> str:
    return "-".join(map(dtype_name, row))


NAMES = ("BatchNormInternal", "BatchNormalizationGrad")
NAMES_WITH_RELU = ("BatchNormRelu", "BatchNormReluGrad")
SAMPLES = {name: tuple(_samples(name, i)) for i, name in enumerate((*NAMES, *NAMES_WITH_RELU))}
for _name, _own in zip((NAMES[1], NAMES_WITH_RELU[1]), (_slack, _slack_with_relu), strict=True):
    SAMPLES[_name] = tuple(replace(sample, slack=_own) for sample in SAMPLES[_name])
