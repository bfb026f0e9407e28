# SPDX-License-Identifier: MIT
"""Sample inputs of gradient descent, norms of gradients and clipping.

In makers of inputs: w, g, t, copy are the dtypes of weights, gradients, a tensor, and low-precision
weights; shapes are those of a list's arrays, one for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ...dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, INT64, dtype_name
from ...rules.widening import computed_in
from ...samples import SHAPES, Generator, Sample, Shape
from ..gradient.samples import LISTS, ORDINARY, special
from ..tensor.samples import values

# Weights and gradients.
PAIRS = (
    (FLOAT32, FLOAT32), (FLOAT32, FLOAT16), (FLOAT32, BFLOAT16), (FLOAT16, FLOAT16),
    (BFLOAT16, BFLOAT16), (FLOAT64, FLOAT64),
)  # fmt: skip


# Attributes of SGDMomentumList.
DESCENTS: tuple[dict[str, Any], ...] = (
    {"weight_decay": 0.1, "nesterov": True},
    {"dampening": 0.5, "maximize": True},
    {"momentum": 0.5, "weight_decay": 0.1},
)


def one(value: Any, dtype: Any, shape: Shape = (1,)) -> Any:
    """Return `value` in an array of one element."""
    return np.full(shape, value).astype(dtype)


# label, loss scale, norm of the gradients, which is never checked. A scale with which no step is
# possible is refused if it is a number; as an array it skips the step.
SCALES = (
    ("scaled", 8.0, 4.0), ("clipped", 8.0, 96.0), ("norm-nan", 2.0, np.nan),
    ("norm-inf", 2.0, np.inf), ("norm-zero", 2.0, 0.0), ("scale-nan", one(np.nan, FLOAT32), 1.0),
    ("scale-inf", one(np.inf, FLOAT32), 1.0), ("scale-zero", one(0.0, FLOAT32), 1.0),
)  # fmt: skip


def arrays(rng: Generator, shapes: tuple[Shape, ...], dtype: Any) -> list[Any]:
    """Return a list of random arrays, one of each shape."""
    return [values(rng, shape, dtype) for shape in shapes]


def holes(rng: Generator, shapes: tuple[Shape, ...], dtype: Any) -> list[Any]:
    """Return a list of random arrays, one of each shape, but None for every third: 1, 4, 7, ..."""
    pairs = enumerate(arrays(rng, shapes, dtype))
    return [None if i % 3 == 1 else array for i, array in pairs]


def _one_step(rng: Generator, t: Any, rate: Any, shape: Shape = (16, 64)) -> tuple[Any, ...]:
    """Return SGDOptimizer's inputs: ETA of type `rate`, W and G of type t."""
    return one(0.5, rate), values(rng, shape, t), values(rng, shape, t)


def _special_step(_rng: Generator, t: Any) -> tuple[Any, ...]:
    """Return ETA, and W and G in which every special value meets every other."""
    x = special(t)
    return 0.5, np.repeat(x, x.size), np.tile(x, x.size)


def _list_step(
    rng: Generator,
    w: Any,
    g: Any,
    shapes: tuple[Shape, ...] = ORDINARY,
    lr: Any = 0.5,
    flag: tuple[Any, ...] = (),
) -> tuple[Any, ...]:
    """Return the inputs of a step over lists: lr, weights, gradients, and those in `flag`.

    flag: (update signal,), or () to leave it out.
    """
    return lr, arrays(rng, shapes, w), arrays(rng, shapes, g), *flag


def _full_step(
    rng: Generator,
    w: Any,
    g: Any,
    copy: Any,
    numbers: tuple[Any, ...],
    shapes: tuple[Shape, ...] = ORDINARY,
) -> tuple[Any, ...]:
    """Return inputs of SGDOptimizerList: lr, weights, gradients, low-precision copies, the others.

    numbers: lr, loss scale, norm, largest norm, update signal; a number or an array of one each.
    """
    lr, *others = numbers
    return lr, arrays(rng, shapes, w), arrays(rng, shapes, g), holes(rng, shapes, copy), *others


def _gradients(rng: Generator, t: Any, shapes: tuple[Shape, ...] = ORDINARY) -> tuple[Any, ...]:
    """Return a list of random gradients of type t as the one input."""
    return (arrays(rng, shapes, t),)


def _special_gradients(rng: Generator, t: Any, value: float) -> tuple[Any, ...]:
    """Return a list of two gradients, the first of which has `value` once."""
    first = values(rng, (300,), t)
    first[17] = value
    return ([first, values(rng, (33,), t)],)


def _sgd() -> Iterator[Sample]:
    """Yield samples of SGDOptimizer: each type and shape."""
    name = "SGDOptimizer"
    for i, t in enumerate(FLOATS):
        make = partial(_one_step, t=t, rate=FLOATS[i - 1])
        yield Sample(name, f"{dtype_name(t)}-ordinary", make)
        yield Sample(name, f"{dtype_name(t)}-special", partial(_special_step, t=t))
        for label, shape, offset in SHAPES[1:]:
            make = partial(_one_step, t=t, rate=FLOAT32, shape=shape)
            yield Sample(name, f"{dtype_name(t)}-{label}", make, {}, offset)


def _sgd_v2() -> Iterator[Sample]:
    """Yield samples of SGDOptimizerV2: each pair of types, with and without a signal."""
    name = "SGDOptimizerV2"
    for i, (w, g) in enumerate(PAIRS):
        types = f"{dtype_name(w)}-{dtype_name(g)}"
        lr = one(0.25, FLOATS[i % 4])
        for label, flag in (("ordinary", ()), ("updated", (one(True, bool),))):
            make = partial(_list_step, w=w, g=g, lr=lr, flag=flag)
            yield Sample(name, f"{types}-{label}", make)
        make = partial(_list_step, w=w, g=g, flag=(bool(i % 2),))
        yield Sample(name, f"{types}-flagged", make)
    yield from _by_lists(name, PAIRS, _list_step)
    make = partial(_list_step, w=FLOAT32, g=FLOAT16, flag=(one(False, bool, ()),))
    yield Sample(name, "float32-float16-not-updated", make)


def _by_lists(name: str, pairs: Any, maker: Any) -> Iterator[Sample]:
    """Yield a sample of `name` for each of LISTS, with inputs maker(rng, w=, g=, shapes=).

    pairs: dtypes (w, g), of which the i-th sample has the i-th, from the start again at the end.
    """
    for i, (label, shapes, offset) in enumerate(LISTS):
        w, g = pairs[i % len(pairs)]
        make = partial(maker, w=w, g=g, shapes=shapes)
        yield Sample(name, f"{dtype_name(w)}-{dtype_name(g)}-{label}", make, {}, offset)


def _sgd_list() -> Iterator[Sample]:
    """Yield samples of SGDOptimizerList: numbers and arrays of one, scales, skipped steps."""
    name = "SGDOptimizerList"
    full = partial(_full_step, copy=BFLOAT16, numbers=(0.5, 8.0, 16.0, 1.5, True))
    yield from _by_lists(name, PAIRS, full)
    for i, (w, g) in enumerate(PAIRS):
        label, scale, norm = SCALES[i]
        kinds = [FLOATS[(i + k) % 4] for k in range(4)]
        numbers = tuple(map(one, (0.5, scale, norm, 1.5), kinds))
        make = partial(_full_step, w=w, g=g, copy=(FLOAT16, BFLOAT16)[i % 2], numbers=numbers)
        yield Sample(name, f"{dtype_name(w)}-{dtype_name(g)}-ordinary-{label}", make)
    for label, scale, norm in SCALES:
        make = partial(
            _full_step, w=FLOAT32, g=FLOAT32, copy=FLOAT16, numbers=(0.5, scale, norm, 1.5, True)
        )
        yield Sample(name, f"float32-{label}", make)
    for label, flag in (("false", False), ("array-false", one(False, bool))):
        numbers = (0.5, None, None, None, flag)
        make = partial(_full_step, w=FLOAT32, g=FLOAT16, copy=BFLOAT16, numbers=numbers)
        yield Sample(name, f"float32-float16-signal-{label}", make)
    yield Sample(name, "float32-float32-alone", partial(_list_step, w=FLOAT32, g=FLOAT32))
    for w, g in PAIRS[::2]:
        make = partial(_list_step, w=w, g=g)
        mode = {"weight_decay": 0.1, "maximize": w == FLOAT32}
        yield Sample(name, f"{dtype_name(w)}-{dtype_name(g)}-decayed", make, mode)


def _sgd_momentum() -> Iterator[Sample]:
    """Yield samples of SGDMomentumList: first and later steps, rules, random rounding."""
    name = "SGDMomentumList"
    for i, (w, g) in enumerate(PAIRS):
        types, (label, scale, norm) = f"{dtype_name(w)}-{dtype_name(g)}", SCALES[i]
        kinds = [FLOATS[(i + k) % 4] for k in range(4)]
        lr, *scales = map(one, (0.5, scale, norm, 1.5), kinds)
        numbers = lr, *scales, one(i % 5, bool), one(i + 1, INT64)
        make = partial(_momentum_step, w=w, g=g, copy=(FLOAT16, BFLOAT16)[i % 2], numbers=numbers)
        yield Sample(name, f"{types}-ordinary-{label}", make, DESCENTS[i % 3])
        numbers = 0.5, 8.0, 96.0, 1.5, bool(i % 3), i + 1
        make = partial(_momentum_step, w=w, g=g, numbers=numbers)
        yield Sample(name, f"{types}-ordinary", make, DESCENTS[(i + 1) % 3])
    numbers = one(0.5, FLOAT16), None, None, None, one(True, bool), one(2, INT64)
    for i, (label, shapes, offset) in enumerate(LISTS):
        w, g = PAIRS[i % len(PAIRS)]
        make = partial(_momentum_step, w=w, g=g, shapes=shapes, numbers=numbers)
        mode = DESCENTS[(i + 1) % 3]
        yield Sample(name, f"{dtype_name(w)}-{dtype_name(g)}-{label}", make, mode, offset)
        make = partial(_momentum_step, w=BFLOAT16, g=BFLOAT16, shapes=shapes, numbers=numbers)
        mode = mode | {"rounding_seed": i}
        yield Sample(name, f"bfloat16-{label}-seeded", make, mode, offset)


def _momentum_step(
    rng: Generator,
    w: Any,
    g: Any,
    numbers: tuple[Any, ...],
    copy: Any = None,
    shapes: tuple[Shape, ...] = ORDINARY,
) -> tuple[Any, ...]:
    """Return SGDMomentumList's inputs: lr, weights, gradients, copies, the other numbers, momenta.

    numbers: lr, loss scale, norm, largest norm, update signal, step; a number or an array of one
    each. copy: None for no low-precision copies.
    """
    lr, *others = numbers
    copies = None if copy is None else holes(rng, shapes, copy)
    momenta = arrays(rng, shapes, computed_in(w))
    return lr, arrays(rng, shapes, w), arrays(rng, shapes, g), copies, *others, momenta


def _norms(name: str, attributes: dict[str, Any]) -> Iterator[Sample]:
    """Yield samples of `name`, which takes a list's norm, with these attributes.

    Each type, with ordinary numbers, NaN and infinities; each list of shapes.
    """
    for t in FLOATS:
        own = dtype_name(t)
        yield Sample(name, f"{own}-ordinary", partial(_gradients, t=t), attributes)
        for value in (np.nan, np.inf, -np.inf):
            make = partial(_special_gradients, t=t, value=value)
            yield Sample(name, f"{own}-{value}", make, attributes)
    for i, (label, shapes, offset) in enumerate(LISTS):
        t = FLOATS[i % 4]
        make = partial(_gradients, t=t, shapes=shapes)
        yield Sample(name, f"{dtype_name(t)}-{label}", make, attributes, offset)


def _clips() -> Iterator[Sample]:
    """Yield samples of InplaceClipGradNorm: those of a norm, clipped to 0 and to 1e9."""
    yield from _norms("InplaceClipGradNorm", {})
    for limit in (0.0, 1e9):
        make = partial(_gradients, t=FLOAT32)
        yield Sample("InplaceClipGradNorm", f"float32-to-{limit}", make, {"max_norm": limit})


SAMPLES = {
    "GradientNorm": tuple(_norms("GradientNorm", {})),
    "InplaceClipGradNorm": tuple(_clips()),
    "SGDMomentumList": tuple(_sgd_momentum()),
    "SGDOptimizer": tuple(_sgd()),
    "SGDOptimizerList": tuple(_sgd_list()),
    "SGDOptimizerV2": tuple(_sgd_v2()),
}
