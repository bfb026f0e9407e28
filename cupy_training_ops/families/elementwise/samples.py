# SPDX-License-Identifier: MIT
"""Sample inputs of scaling, division, quantisation and finiteness."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...declare.schema import Input
from ...dtypes import BOOL, FLOAT16, FLOAT32, FLOATS, dtype_name
from ...samples import Generator, Sample, Shape, elementwise_samples, rounding_of_sums
from .operators import OPS

SPECIALS = np.array(
    [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-38, 6e-8, 3e4, -1e30, 300] * 200
)

SCALES = {"scale_0": 0.3, "scale_1": -2.5, "scale_2": 1.1}
# Inputs behind the arrays.
HOSTS: dict[str, tuple[Any, ...]] = {
    "Scale": (np.array([0.3]),),
    "ScaleInPlace": (np.array([0.3], FLOAT32),),
    "FakeQuant": (0.075, 3.0),
}
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "BatchScale": SCALES,
    "FakeQuant": {"quant_min": -20, "quant_max": 30},
    "ScaledSum": SCALES,
}

# label, shapes of A and B; both ways round
BROADCASTS: tuple[tuple[str, Shape, Shape], ...] = (
    ("scalar", (9, 1007), ()),
    ("trailing", (500, 24), (24,)),
    ("trailing-odd", (300, 7), (7,)),
    ("trailing-wide", (20, 2056), (1, 2056)),
    ("leading", (30, 264), (30, 1)),
    ("channels", (5, 6, 7, 16), (6, 1, 1)),
    ("channels-large", (3, 2, 2100), (2, 1)),
    ("channels-odd", (40, 3, 5), (3, 1)),
    ("two-apart", (3, 4, 5, 6), (4, 1, 6)),
    ("both", (2, 1, 1, 5), (1, 3, 4, 1)),
    ("outer-product", (40, 1), (1, 90)),
    ("empty-sum", (0, 3), (1, 3)),
    ("empty-run", (3, 0), (3, 1)),
)


def _value(rng: Generator, shape: Shape, dtype: Any) -> Any:
    """Return random normal numbers moved away from 0 by 0.2; random bools for bool."""
    x = np.asarray(rng.standard_normal(shape))
    return x > 0 if dtype == BOOL else (x + np.copysign(0.2, x)).astype(dtype)


def _arrays(rng: Generator, name: str, shape: Shape, dtype: Any) -> tuple[Any, ...]:
    """Return the inputs of the operator `name`: random arrays of `shape`, then HOSTS[name]."""
    arrays = _array_inputs(name)
    values = [_value(rng, shape, BOOL if i.type == "bool" else dtype) for i in arrays]
    return (*values, *HOSTS.get(name, ()))


def _array_inputs(name: str) -> list[Input]:
    """Return the inputs that have the output's shape."""
    return [i for i in OPS[name].inputs if i.memory == "device" and i.shape != "one element"]


def _special(rng: Generator, name: str, dtype: Any) -> tuple[Any, ...]:
    """Return the inputs of operator `name`: n arrays of n rows, then HOSTS[name].

    Row i of array i is SPECIALS, all other rows are random.
    """
    n_arrays = len(_array_inputs(name))
    values = _arrays(rng, name, (n_arrays, SPECIALS.size), dtype)
    with np.errstate(over="ignore"):
        for i, array in enumerate(values[:n_arrays]):
            if array.dtype != BOOL:
                array[i] = SPECIALS.astype(dtype)
    return values


def _broadcast(rng: Generator, a: Shape, b: Shape, dtype: Any) -> tuple[Any, ...]:
    """Return random dY, A and B of DivGrad, for shapes a and b."""
    shapes = (np.broadcast_shapes(a, b), a, b)
    return tuple(_value(rng, shape, dtype) for shape in shapes)


def _slack(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return how far dA and dB may be off by rounding of sums; inputs: dY, A and B."""
    dy, a, b = (x.astype(np.float64) for x in inputs)
    terms = dy / b, dy * a / b**2
    return tuple(_of_summed(*pair, inputs[0].dtype) for pair in zip(terms, (a, b), strict=True))


def _of_summed(terms: Any, like: Any, dtype: Any) -> Any:
    """Return tolerances of `terms` summed to the shape of `like`; 0.0 if nothing is summed."""
    shape = (1,) * (terms.ndim - like.ndim) + like.shape
    axes = tuple(i for i, n in enumerate(shape) if n != terms.shape[i])
    return rounding_of_sums(terms, axes, dtype).reshape(like.shape) if axes else 0.0


def _division() -> Iterator[Sample]:
    """Yield samples of DivGrad: BROADCASTS each way round, dtypes in turn; misaligned ones."""
    for i, (label, a, b) in enumerate(BROADCASTS):
        for turned in (False, True):
            make = partial(_broadcast, a=b if turned else a, b=a if turned else b)
            dtype = FLOATS[(i + turned) % len(FLOATS)]
            name = f"{dtype_name(dtype)}-{label}{'-turned' * turned}"
            yield Sample("DivGrad", name, partial(make, dtype=dtype), slack=_slack)
    for label, a, b, offset in (
        ("misaligned-row", (500, 24), (24,), 1),
        ("misaligned-runs", (3, 2, 264), (2, 1), 1),
    ):
        make = partial(_broadcast, a=a, b=b, dtype=FLOAT16)
        yield Sample("DivGrad", f"float16-{label}", make, {}, offset, slack=_slack)


def _first(rng: Generator, make: Callable[..., Sequence[Any]], n: int) -> Sequence[Any]:
    """Return the first n of the inputs that `make` makes."""
    return make(rng)[:n]


def _by_one(rng: Generator, make: Callable[..., Sequence[Any]]) -> Sequence[Any]:
    """Return ScaleInPlace's inputs with a factor of 1."""
    return make(rng)[0], np.ones(1, FLOAT32)


def _extra() -> Iterator[Sample]:
    """Yield samples with optional inputs left out, with other attributes, and DivGrad's."""
    two = {name: SCALES[name] for name in ("scale_0", "scale_1")}
    both = partial(_arrays, name="ScaledSum", shape=(7, 31), dtype=FLOAT16)
    yield Sample("ScaledSum", "float16-two", partial(_first, make=both, n=2), two)
    one = partial(_arrays, name="BatchScale", shape=(7, 31), dtype=FLOAT16)
    yield Sample("BatchScale", "float16-two", one, two)
    down = partial(_arrays, name="Scale", shape=(7, 31), dtype=FLOAT32)
    yield Sample("Scale", "float32-down", down, {"scale_down": True})
    alone = partial(_arrays, name="ScaleInPlace", shape=(7, 31), dtype=FLOAT16)
    yield Sample("ScaleInPlace", "float16-one", partial(_by_one, make=alone))
    yield from _division()


_ALL = [*elementwise_samples(OPS, ATTRIBUTES, _arrays, _special), *_extra()]
SAMPLES = {name: tuple(s for s in _ALL if s.op == name) for name in OPS}
