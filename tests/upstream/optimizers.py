# SPDX-License-Identifier: MIT
"""Steps of optimizers, and clipping."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from cupy_training_ops.dtypes import FLOAT32, INT64
from cupy_training_ops.samples import Generator, Sample
from upstream.values import (
    LISTS,
    SHAPES,
    Shape,
    label_of,
    list_of,
    normals,
)

ADAM_MODES: tuple[dict[str, Any], ...] = (
    {"weight_decay_mode": 0, "do_bias_correction": True, "lambda_": 0.01},
    {"weight_decay_mode": 1, "do_bias_correction": True, "lambda_": 0.01, "epsilon": 1e-3},
    {"weight_decay_mode": 1, "do_bias_correction": False, "alpha": 0.8, "beta": 0.99},
)
ADAM_W_MODES: tuple[dict[str, Any], ...] = (
    {"adam_mode": 0, "correct_bias": True, "weight_decay": 0.01},
    {"adam_mode": 1, "correct_bias": True, "weight_decay": 0.02, "epsilon": 1e-3},
    {"adam_mode": 1, "correct_bias": False, "weight_decay": 0.0, "alpha": 0.8},
)


def samples() -> Iterator[Sample]:
    """float32 only; upstream's AdamOptimizer knows no scale, norm, copy or signal. At step 100 its
    AdamWOptimizer has digits left of 1 - beta^step."""
    for shape in SHAPES:
        yield Sample("SGDOptimizer", label_of(shape), partial(_descent, shape=shape))
        for attributes in ADAM_MODES:
            make = partial(_adam, shape=shape)
            yield Sample("AdamOptimizer", label_of(shape, attributes), make, attributes)
    for number, shapes in enumerate(LISTS):
        for signal in (True, False):
            make = partial(_descents, shapes=shapes, signal=signal)
            yield Sample("SGDOptimizerV2", f"{len(shapes)}-tensors-{signal}", make)
            make = partial(_adam_w, shapes=shapes, signal=signal)
            label = f"{len(shapes)}-tensors-{signal}"
            yield Sample("AdamWOptimizer", label, make, ADAM_W_MODES[number])
        for most in (0.5, 1000.0):
            make, attributes = partial(list_of, shapes=shapes), {"max_norm": most}
            label = f"{len(shapes)}-tensors-{most}"
            yield Sample("InplaceClipGradNorm", label, make, attributes)


def _descent(rng: Generator, shape: Shape) -> tuple[Any, ...]:
    return np.full(1, 0.3, FLOAT32), *normals(rng, (shape, shape))


def _adam(rng: Generator, shape: Shape) -> tuple[Any, ...]:
    w, g, m, v = normals(rng, (shape,) * 4)
    return np.full(1, 0.01, FLOAT32), np.full(1, 7, INT64), w, g, m, np.abs(v)


def _descents(rng: Generator, shapes: Sequence[Shape], signal: bool) -> tuple[Any, ...]:
    lists = (list(normals(rng, shapes)) for _ in range(2))
    return np.full(1, 0.3, FLOAT32), *lists, np.array([signal])


def _adam_w(rng: Generator, shapes: Sequence[Shape], signal: bool) -> tuple[Any, ...]:
    w, g, m, v = (list(normals(rng, shapes)) for _ in range(4))
    numbers = np.full(1, 0.01, FLOAT32), np.full(1, 100, INT64)
    return *numbers, w, g, m, [np.abs(x) for x in v], np.array([signal])
