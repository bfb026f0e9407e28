# SPDX-License-Identifier: MIT
"""Sample inputs of LAMB."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, INT64, dtype_name
from ...rules.step import number
from ...rules.widening import cast
from ...samples import Generator, Sample, Shape
from ..gradient.samples import LISTS, ORDINARY
from ..optimizer.samples import SCALES, arrays, holes, one
from .operators import LambOptimizer
from .reference import lamb_optimizer

Types = tuple[Any, Any, Any]

# Weights, gradients and moments.
ROWS: tuple[Types, ...] = (
    (FLOAT32, FLOAT32, FLOAT32),
    (FLOAT64, FLOAT64, FLOAT64),
    *((FLOAT32, half, FLOAT32) for half in (FLOAT16, BFLOAT16)),
    *((FLOAT32, half, half) for half in (FLOAT16, BFLOAT16)),
)
RATE = 0.01
ROUNDINGS = 16  # a direction's, each of half a unit in the last place of its terms
PLAIN = (None, None, None, RATE, 3)  # signal, loss scale, norm, rate, step
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
    """Return the inputs of a step: numbers, weights, gradients, two moments, copies.

    types: of weights, gradients and moments. shapes: of a list's arrays. numbers: (update signal,
    loss scale, norm, rate, step). copy: dtype of low-precision weights, or None.
    """
    w, g, moment = types
    moments = [arrays(rng, shapes, moment) for _ in range(2)]
    for array in moments[1]:
        np.abs(array, out=array)
    mixed = () if copy is None else (holes(rng, shapes, copy),)
    return *numbers, arrays(rng, shapes, w), arrays(rng, shapes, g), *moments, *mixed


def _special(rng: Generator, types: Types) -> tuple[Any, ...]:
    """Return inputs with non-finite gradients, weights of zeros, and a direction of zeros."""
    inputs = _step(rng, types, ((64,), (64,), (64,)))
    weights, gradients, first = inputs[5:8]
    gradients[0][:4] = np.nan, np.inf, -np.inf, 0.0
    weights[1][:] = 0
    gradients[2][:] = first[2][:] = 0
    return inputs


# ---- what a direction that is rounded to 16 bits leaves open -------------------------------------


def slack(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> list[Any]:
    """Return how far the new step (0) and each new weight array may be off; [] if it is skipped.

    inputs, attributes: those of a call of LambOptimizer.

    A direction is within ROUNDINGS of its terms' magnitudes of the exact one. Where the two ends of
    that range are rounded to different numbers of the gradient's type, each of these is right, and
    so are the weights that it gives, and all weights by the trust ratio that it has a part in.
    """
    if not number(inputs[0]):
        return []
    exact = _directions(inputs, attributes, np.asarray)
    terms = _directions(inputs, attributes, np.abs)
    rows = zip(inputs[5], inputs[6], exact, terms, strict=True)
    limits = attributes.get("ratio_min", -np.inf), attributes.get("ratio_max", np.inf)
    return [0.0, *(abs(number(inputs[3])) * _slack_of_one(*row, limits) for row in rows)]


def _directions(inputs: Sequence[Any], attributes: Mapping[str, Any], size: Any) -> Sequence[Any]:
    """Return the directions in float64: what a step with rate -1 and trust ratio 1 adds.

    inputs, attributes: of a call of LambOptimizer. size: np.asarray, or np.abs for the sums of the
    magnitudes of a direction's terms.
    """
    scale, norm, _, step, *lists = inputs[1:8]
    wide = [[size(x.astype(FLOAT64)) for x in xs] for xs in lists]
    wide.append([x.astype(FLOAT64) for x in inputs[8]])
    alone = LambOptimizer(**{**attributes, "ratio_min": 1.0, "ratio_max": 1.0}).cpu_attributes()
    step_of: Callable[..., Any] = lamb_optimizer
    return step_of(None, scale, norm, -1.0, step, *wide, **alone)[2]  # type: ignore[no-any-return]


def _slack_of_one(w: Any, g: Any, exact: Any, terms: Any, limits: tuple[float, float]) -> Any:
    """Return the slack of one parameter's weights at a rate of 1.

    w, g: weights and gradient. exact: directions. terms: sums of the magnitudes of their terms.
    limits: (least, most) of the trust ratio.
    """
    error = ROUNDINGS * np.finfo(w.dtype).eps / 2 * terms
    ends = (cast(exact + by, g.dtype).astype(FLOAT64) for by in (-error, error))
    low, high = map(np.nan_to_num, ends)
    apart, lengths = high - low, [np.linalg.norm(x.astype(FLOAT64)) for x in (w, low)]
    if not all(lengths):
        return apart
    ratio = np.clip(lengths[0] / lengths[1], *limits)
    # Directions are off by `apart`, and the ratio by the relative error of their norm.
    return ratio * (apart + np.abs(low) * np.linalg.norm(apart) / lengths[1])


def _label(types: Types, *words: str) -> str:
    """Return a sample's label: the dtypes, then words."""
    return "-".join((*map(dtype_name, types), *words))


def _lamb() -> Iterator[Sample]:
    """Yield samples of each type, scale, list of shapes, and of steps that are skipped."""
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


def _with_slack(sample: Sample) -> Sample:
    return replace(sample, slack=partial(slack, attributes=sample.attributes))


SAMPLES = {"LambOptimizer": tuple(map(_with_slack, _lamb()))}
