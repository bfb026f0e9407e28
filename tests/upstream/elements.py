# SPDX-License-Identifier: MIT
"""Calls that work element by element: activations, dropout, scaling, division."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from cupy_training_ops.dtypes import BOOL, FLOAT16, FLOAT32, FLOAT64, INT64, dtype_name
from cupy_training_ops.samples import Generator, Sample
from upstream.values import (
    INT32,
    SHAPES,
    Shape,
    away_from_zero,
    label_of,
    normal,
    normals,
)

# ---- activations ---------------------------------------------------------------------------------

GRADIENTS = (
    "ReluGrad",
    "SigmoidGrad",
    "TanhGrad",
    "GeluGrad",
    "FastGeluGrad",
    "QuickGeluGrad",
    "LeakyReluGrad",
    "BiasGeluGrad_dX",
    "BiasFastGeluGrad_dX",
)
# Of those that take the forward output in place of X.
OUTPUTS: dict[str, Callable[[Any], Any]] = {
    "SigmoidGrad": lambda x: 1 / (1 + np.exp(-x)),
    "TanhGrad": np.tanh,
}
ALPHAS: tuple[dict[str, Any], ...] = ({}, {"alpha": 1.1}, {"alpha": -0.6})


def _activation_gradients() -> Iterator[Sample]:
    for name, shape in itertools.product(GRADIENTS, SHAPES):
        make = partial(_slope, name=name, shape=shape)
        for attributes in ALPHAS if name in ("QuickGeluGrad", "LeakyReluGrad") else ({},):
            yield Sample(name, label_of(shape, attributes), make, attributes)


def _slope(rng: Generator, name: str, shape: Shape) -> tuple[Any, ...]:
    """dY, X or Y, and the row that is added to X."""
    dy, x = normals(rng, (shape, shape))
    row = [normal(rng, shape[-1:])] if name.startswith("Bias") else []
    return dy, OUTPUTS.get(name, np.asarray)(x), *row


def _activations() -> Iterator[Sample]:
    for shape in SHAPES:
        alone, row = partial(normals, shapes=(shape,)), (shape, shape[-1:])
        yield Sample("Gelu", label_of(shape), alone)
        yield Sample("FastGelu", label_of(shape), alone)
        yield Sample("FastGelu", f"{label_of(shape)}-bias", partial(normals, shapes=row))
        yield Sample("BiasGelu", label_of(shape), partial(normals, shapes=row))
        for attributes in ALPHAS:
            yield Sample("QuickGelu", label_of(shape, attributes), alone, attributes)


# ---- dropout -------------------------------------------------------------------------------------

# Types of dy and of the ratio. Upstream forms 1 - ratio in float32, and divides: ratios whose
# reciprocal is exact give the same bits, others were seen one unit in the last place apart.
DROPOUT_TYPES = ((FLOAT32, FLOAT32), (FLOAT32, FLOAT64), (FLOAT64, FLOAT64), (FLOAT16, FLOAT32))


def _dropout() -> Iterator[Sample]:
    """In training mode, which upstream takes for granted."""
    for shape, (dtype, of_ratio) in itertools.product(SHAPES, DROPOUT_TYPES):
        for ratio in (None, 0.75, 0.875):
            make = partial(_dropped, shape=shape, dtype=dtype, ratio=ratio, of_ratio=of_ratio)
            types = f"{dtype_name(dtype)}-{dtype_name(of_ratio)}"
            yield Sample("DropoutGrad", f"{types}-{label_of(shape)}-{ratio}", make)


def _dropped(
    rng: Generator, shape: Shape, dtype: Any, ratio: float | None, of_ratio: Any
) -> tuple[Any, ...]:
    given = () if ratio is None else (np.array(ratio, of_ratio), np.array(True))
    return normal(rng, shape, dtype), normal(rng, shape, BOOL), *given


# ---- elementwise ---------------------------------------------------------------------------------

DIVISIONS: tuple[tuple[Shape, Shape], ...] = (
    ((5, 7), (5, 7)),
    ((3, 5, 7), ()),
    ((), (3, 5, 7)),
    ((2, 3, 5), (5,)),
    ((5,), (2, 3, 5)),
    ((3, 4, 5), (2, 1, 1, 1)),
    ((2, 1, 1, 5), (1, 3, 4, 1)),
    ((4, 2, 3, 3), (4, 1, 1, 3)),
)


def _scales() -> Iterator[Sample]:
    """float64 by powers of two only: upstream rounds scale and reciprocal to float32."""
    types = (FLOAT32, FLOAT32), (FLOAT32, INT32), (FLOAT32, INT64), (FLOAT64, FLOAT64)
    for shape, (dtype, scale_dtype) in zip((*SHAPES, SHAPES[1]), types, strict=True):
        for attributes in ({}, {"scale_down": True}):
            make = partial(_scaled, shape=shape, dtype=dtype, scale_dtype=scale_dtype)
            types_label = f"{dtype_name(dtype)}-{dtype_name(scale_dtype)}"
            yield Sample("Scale", f"{types_label}-{label_of(shape, attributes)}", make, attributes)


def _quantisations() -> Iterator[Sample]:
    for shape in SHAPES:
        for low, high in ((0, 255), (-20, 30)):
            limits = {"quant_min": low, "quant_max": high}
            yield Sample("FakeQuant", label_of(shape, limits), partial(_quant, shape=shape), limits)
        yield Sample("FakeQuantGrad", label_of(shape), partial(_quant_gradient, shape=shape))


def _divisions() -> Iterator[Sample]:
    for a, b in DIVISIONS:
        for dtype in (FLOAT32, FLOAT64):
            label = f"{dtype_name(dtype)}-{label_of(a)}-by-{label_of(b)}"
            yield Sample("DivGrad", label, partial(_division, a=a, b=b, dtype=dtype))


def _scaled(rng: Generator, shape: Shape, dtype: Any, scale_dtype: Any) -> tuple[Any, ...]:
    scale = {FLOAT32: rng.uniform(-3, -0.3), FLOAT64: -4.0}.get(scale_dtype, 7)
    return normal(rng, shape, dtype), np.array(scale, scale_dtype)


def _quant(rng: Generator, shape: Shape) -> tuple[Any, ...]:
    """Either pair of limits clamps values on both sides."""
    scale = np.array(rng.uniform(0.005, 0.015), FLOAT32)
    return normal(rng, shape), scale, np.array(3, FLOAT32)


def _quant_gradient(rng: Generator, shape: Shape) -> tuple[Any, ...]:
    return normal(rng, shape), normal(rng, shape, BOOL)


def _division(rng: Generator, a: Shape, b: Shape, dtype: Any) -> tuple[Any, ...]:
    dy = away_from_zero(rng, np.broadcast_shapes(a, b), dtype)
    return dy, away_from_zero(rng, a, dtype), away_from_zero(rng, b, dtype)


def samples() -> Iterator[Sample]:
    yield from _activation_gradients()
    yield from _activations()
    yield from _dropout()
    yield from _scales()
    yield from _quantisations()
    yield from _divisions()
