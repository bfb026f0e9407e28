# SPDX-License-Identifier: MIT
"""Sample inputs of activations and their gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from ...dtypes import FLOATS, dtype_name
from ...samples import Generator, Sample, Shape, elementwise_samples
from .operators import OPS

SPECIALS = np.array(
    [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 1e-38, -1e-5, 1e30, -1e30, 20, -20, 5.5,
     -5.5, -0.7517915] * 75
)  # fmt: skip
# dY, and B of GATED, multiply a slope: huge ones would show its error beside a zero of it, so that
# SPECIAL_FACTORS are at most 20. `_huge` has huge ones where no zero is near.
GATED = ("SwiGluGrad", "FastGeGluGrad")
SPECIAL_FACTORS = np.where(np.isfinite(SPECIALS), np.clip(SPECIALS, -20, 20), SPECIALS)
OUTPUTS: dict[str, Callable[[Any], Any]] = {
    "SigmoidGrad": lambda x: 1 / (1 + np.exp(-x)),
    "TanhGrad": np.tanh,
}
SMOOTH = ("GeluGrad", "FastGeluGrad", "QuickGeluGrad", "BiasGeluGrad_dX", "BiasFastGeluGrad_dX")
HALVES = ("SwiGluHalves", "SwiGluHalvesGrad")  # X has rows twice as long as Y
ATTRIBUTES = {"LeakyReluGrad": {"alpha": 0.3}, "QuickGeluGrad": {"alpha": 1.1}}


def _arrays(rng: Generator, name: str, shape: Shape, dtype: Any) -> tuple[Any, ...]:
    """Return the operator's inputs: normal numbers; a forward output where it takes one."""
    op = OPS[name]
    shapes = [shape[-1:] if item.name == op.row else shape for item in op.inputs]
    if name in HALVES:
        shapes[-1] = (*shape[:-1], 2 * shape[-1])
    arrays = [2 * rng.standard_normal(each) for each in shapes]
    if name in OUTPUTS:
        arrays[1] = OUTPUTS[name](arrays[1])
    return tuple(np.asarray(array).astype(dtype) for array in arrays)


def _special(rng: Generator, name: str, dtype: Any) -> tuple[Any, ...]:
    """Return inputs (n_inputs, n) that have special numbers in turn: row i in input i alone.

    An input that is a row (of a bias) has them too. n fills several blocks.
    """
    n = SPECIALS.size
    if name in HALVES:
        *others, a, b = _special(rng, name.replace("Halves", ""), dtype)
        return *others, np.concatenate((a, b), -1)
    arrays = _arrays(rng, name, (len(OPS[name].inputs), n), dtype)
    with np.errstate(over="ignore"):
        for i, (item, array) in enumerate(zip(OPS[name].inputs, arrays, strict=True)):
            is_factor = item.name == "dY" or (item.name == "B" and name in GATED)
            values = SPECIAL_FACTORS if is_factor else SPECIALS
            array[i if array.ndim == 2 else slice(None)] = values.astype(dtype)
    return arrays


def _huge(rng: Generator, name: str, dtype: Any) -> tuple[Any, ...]:
    """Return inputs with dY of about the type's largest, where slopes are small, not near 0."""
    n = 5000
    dy = rng.uniform(-1, 1, n) * np.minimum(1e30, float(ml_dtypes.finfo(dtype).max))
    arrays = [dy, rng.uniform(-6, -3, n), rng.uniform(-1, 1, n)]
    return tuple(array.astype(dtype) for array in arrays[: len(OPS[name].inputs)])


def _extra() -> Iterator[Sample]:
    """Yield samples: rows of several lengths, an absent bias, a huge dY, a negative alpha."""
    for name in ("BiasGeluGrad_dX", "BiasFastGeluGrad_dX", "BiasGelu", "FastGelu"):
        for label, shape in (("narrow", (900, 3)), ("column", (2300, 1)), ("whole", (70, 48))):
            make = partial(_arrays, name=name, shape=shape, dtype=FLOATS[1])
            yield Sample(name, f"float16-{label}-rows", make)
    for dtype in FLOATS[:2]:
        make = partial(_without_bias, shape=(3, 1003), dtype=dtype)
        yield Sample("FastGelu", f"{dtype_name(dtype)}-no-bias", make)
    for name, dtype in itertools.product((*SMOOTH, *GATED), FLOATS):
        yield Sample(name, f"{dtype_name(dtype)}-huge", partial(_huge, name=name, dtype=dtype))
    for name in ("QuickGelu", "QuickGeluGrad"):
        make = partial(_arrays, name=name, shape=(7, 31), dtype=FLOATS[0])
        yield Sample(name, "float32-negative-alpha", make, {"alpha": -1.702})


def _without_bias(rng: Generator, shape: Shape, dtype: Any) -> tuple[Any, ...]:
    return _arrays(rng, "FastGelu", shape, dtype)[:1]


_ALL = [*elementwise_samples(OPS, ATTRIBUTES, _arrays, _special), *_extra()]
SAMPLES = {name: tuple(s for s in _ALL if s.op == name) for name in OPS}
