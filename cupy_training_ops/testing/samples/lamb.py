# SPDX-License-Identifier: MIT
"""Sample inputs of LAMB."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ...dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, INT64, dtype_name
from . import Generator, Sample, Shape
from .gradient import LISTS, ORDINARY
from .optimizer import SCALES, arrays, holes, one

Types = tuple[Any, Any, Any]

# Weights, gradients and moments.
ROWS: tuple[Types, ...] = (
    (FLOAT32, FLOAT32, FLOAT32),
    (FLOAT64, FLOAT64, FLOAT64),
    *((FLOAT32, half, FLOAT32) for half in (FLOAT16, BFLOAT16)),
    *((FLOAT32, half, half) for half in (FLOAT16, BFLOAT16)),
)
RATE = 0.01  # a direction of 16 bits, which may be rounded to either side, is multiplied by it
PLAIN = (None, None, None, RATE, 3)
MODES: tuple[dict[str, Any], ...] = (
    {"lambda_": 0.01},
    {"lambda_": (0.01, 0.1), "epsilon": (1e-6, 1e-3), "alpha": 0.8, "ratio_max": 0.7},
    {"do_bias_correction": False, "max_norm_clip": (0.5, 2.0), "ratio_min": 0.3},
)


def _step(
    rng: Generator,
    types: Types,
    shapes: tuple[Shape, ...] = ORDINARY,
    numbers: tuple[Any, ...] = PLAIN,
    copy: Any = None,
) -> tuple[Any, ...]:
    w, g, moment = types
    moments = arrays(rng, shapes, moment), [np.abs(x) for x in arrays(rng, shapes, moment)]
    mixed = () if copy is None else (holes(rng, shapes, copy),)
    return *numbers, arrays(rng, shapes, w), arrays(rng, shapes, g), *moments, *mixed


def _special(rng: Generator, types: Types) -> tuple[Any, ...]:
    """Elements and whole tensors that have no direction, or no weight."""
    inputs = _step(rng, types, ((64,), (64,), (64,)))
    weights, gradients, first = inputs[5:8]
    gradients[0][:4] = np.nan, np.inf, -np.inf, 0.0
    weights[1][:] = 0
    gradients[2][:] = first[2][:] = 0
    return inputs


def _label(types: Types, *words: str) -> str:
    return "-".join((*map(dtype_name, types), *words))


def _lamb() -> Iterator[Sample]:
    name = "LambOptimizer"
    for i, types in enumerate(ROWS):
        mode, copy = MODES[i % 3], (FLOAT16, BFLOAT16)[i % 2]
        label, scale, norm = SCALES[i % 2]
        kinds = [FLOATS[(i + k) % 4] for k in range(3)]
        scalars = (one(n, t) for n, t in zip((scale, norm, RATE), kinds, strict=True))
        numbers = (one(True, bool), *scalars, one(i, INT64))
        yield Sample(name, _label(types, "ordinary"), partial(_step, types=types), mode)
        make = partial(_step, types=types, numbers=numbers, copy=copy)
        yield Sample(name, _label(types, "ordinary", label), make, mode)
        yield Sample(name, _label(types, "special"), partial(_special, types=types))
    for label, scale, norm in SCALES:
        make = partial(_step, types=ROWS[0], numbers=(True, scale, norm, RATE, 1), copy=FLOAT16)
        yield Sample(name, f"float32-{label}", make)
    for i, (label, shapes, offset) in enumerate(LISTS):
        for types in (ROWS[i], ROWS[(i + 3) % 6]):
            make = partial(_step, types=types, shapes=shapes, copy=BFLOAT16)
            yield Sample(name, _label(types, label), make, {"lambda_": 0.01}, offset)
    signals = ("false", False, 3), ("array-false", one(False, bool), one(3, INT64))
    for label, flag, step in (*signals, ("without-step", None, None)):
        numbers = (flag, None, None, RATE, step)
        make = partial(_step, types=ROWS[3], numbers=numbers, copy=BFLOAT16)
        yield Sample(name, f"float32-signal-{label}", make)


SAMPLES = {"LambOptimizer": tuple(_lamb())}
