# SPDX-License-Identifier: MIT
"""Sample inputs of Adam and AdamW.

In makers of inputs: types, the dtypes (weights, moments, gradients); shapes, those of a list's
arrays; numbers, (learning rate, step), each a number or an array of one element; copy, the dtype of
low-precision weights, or None; others, the inputs behind those, in declared order. maker is one of
these functions, that of the operator; rows are the `types` of its samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ...dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, INT64, dtype_name
from ...samples import SHAPES, Generator, Sample, Shape
from ..gradient.samples import LISTS, ORDINARY
from ..optimizer.samples import SCALES, arrays, holes, one
from ..tensor.samples import values
from .codes import encode

Types = tuple[Any, Any, Any]  # of weights, moments, gradients

# Types that ONNX Runtime has too, then those of lists alone.
ROWS: tuple[Types, ...] = (
    (FLOAT32, FLOAT32, FLOAT32),
    *((FLOAT32, half, FLOAT32) for half in (FLOAT16, BFLOAT16)),
    *((FLOAT32, FLOAT32, half) for half in (FLOAT16, BFLOAT16)),
    *((FLOAT32, half, half) for half in (FLOAT16, BFLOAT16)),
)
LIST_ROWS: tuple[Types, ...] = (
    *ROWS,
    (FLOAT64, FLOAT64, FLOAT64),
    *((half, FLOAT32, half) for half in (FLOAT16, BFLOAT16)),
    *((half, half, half) for half in (FLOAT16, BFLOAT16)),
)
CODED_ROWS: tuple[Types, ...] = (
    (FLOAT32, FLOAT32, FLOAT32),
    *((FLOAT32, FLOAT32, half) for half in (FLOAT16, BFLOAT16)),
    *((half, FLOAT32, FLOAT32) for half in (FLOAT16, BFLOAT16)),
    *((half, FLOAT32, half) for half in (FLOAT16, BFLOAT16)),
)
MODES: tuple[dict[str, Any], ...] = (
    {"lambda_": 0.01},
    {"lambda_": 0.01, "weight_decay_mode": 1},
    {"do_bias_correction": False, "max_norm_clip": 0.5},
    {"lambda_": 0.1, "weight_decay_mode": 1, "do_bias_correction": False, "epsilon": 1e-3},
)
NEGATED: tuple[dict[str, Any], ...] = (
    {"lambda_": 0.1, "weight_decay_mode": 2, "maximize": True},
    {"lambda_": 0.1, "maximize": True},
)
SEEDED: dict[str, Any] = {"lambda_": 0.1, "rounding_seed": 7}
NUMBERS = (0.01, 3)  # learning rate and step
Numbers = tuple[Any, ...]  # numbers, or arrays of one element


def _moments(rng: Generator, shapes: tuple[Shape, ...], dtype: Any) -> tuple[list[Any], list[Any]]:
    """Return lists of first moments and of second ones, which are not negative."""
    return arrays(rng, shapes, dtype), [np.asarray(np.abs(x)) for x in arrays(rng, shapes, dtype)]


def _single(
    rng: Generator,
    types: Types,
    shape: Shape = (16, 64),
    numbers: Numbers = NUMBERS,
    copy: Any = None,
    others: Numbers = (),
) -> tuple[Any, ...]:
    """Return AdamOptimizer's inputs: learning rate, step, weight, gradient, two moments, `others`.

    types: of weight, moments, gradient. numbers: (learning rate, step). copy: dtype of a
    low-precision weight before others, or None. others: loss scale, norm, update signal.
    """
    row = _list(rng, types, (shape,), numbers)
    mixed = None if copy is None else values(rng, shape, copy)
    return *row[:2], *(items[0] for items in row[2:]), mixed, *others


def _list(
    rng: Generator, types: Types, shapes: tuple[Shape, ...], numbers: Numbers = NUMBERS
) -> tuple[Any, ...]:
    """Return learning rate and step, then lists: weights, gradients, first and second moments.

    types: of weights, moments, gradients. shapes: of the parameters. numbers: (learning rate,
    step).
    """
    w, moment, g = types
    weights, gradients = arrays(rng, shapes, w), arrays(rng, shapes, g)
    return *numbers, weights, gradients, *_moments(rng, shapes, moment)


def _full(
    rng: Generator,
    types: Types,
    shapes: tuple[Shape, ...] = ORDINARY,
    numbers: Numbers = NUMBERS,
    copy: Any = None,
    others: Numbers = (),
) -> tuple[Any, ...]:
    """Return AdamOptimizerList's inputs: those of `_list`, low-precision weights, `others`.

    types: of weights, moments, gradients. numbers: (learning rate, step). copy: dtype of
    low-precision weights, some of which are None; None: there are none. others: loss scale, norm,
    update signal, max_norm, or the first of these.
    """
    row = _list(rng, types, shapes, numbers)
    return *row, None if copy is None else holes(rng, shapes, copy), *others


def _with_codes(rng: Generator, types: Types, bits: int = 8, **options: Any) -> tuple[Any, ...]:
    """Return AdamCodedList's inputs: those of _full(types=, **options), with moments as codes.

    bits: of a code, 8 or 4.
    """
    r, t, weights, gradients, first, second, *rest = _full(rng, types, **options)
    codes = [encode(m, v, bits) for m, v in zip(first, second, strict=True)]
    moments = [code.first for code in codes], [code.second for code in codes]
    return r, t, weights, gradients, *moments, *rest


def _with_largest(rng: Generator, types: Types, **options: Any) -> tuple[Any, ...]:
    """Return AdamLargestList's inputs: those of _full(types=, **options), with missing ones None.

    Behind them the largest second moments, some below and some above the new ones.
    """
    row = _full(rng, types, **options)
    others = (*row[7:], None, None, None, None)[:4]
    largest = arrays(rng, tuple(w.shape for w in row[2]), types[1])
    return *row[:7], *others, [np.asarray(np.abs(x)) for x in largest]


def _plain(
    rng: Generator,
    types: Types,
    shapes: tuple[Shape, ...] = ORDINARY,
    numbers: Numbers = NUMBERS,
    flag: Numbers = (),
) -> tuple[Any, ...]:
    """Return AdamWOptimizer's inputs: those of `_list`, then `flag`.

    types: of weights, moments, gradients. numbers: (learning rate, step). flag: (update signal,),
    or () to leave it out.
    """
    return *_list(rng, types, shapes, numbers), *flag


def _special(rng: Generator, types: Types, listed: bool) -> tuple[Any, ...]:
    """Return inputs with NaN, infinities and zeros among the gradients.

    types: of weights, moments, gradients. listed: for AdamOptimizerList, else for AdamOptimizer.
    """
    row = _full(rng, types, ((64,),))
    row[3][0][:6] = np.nan, np.inf, -np.inf, 0.0, -0.0, 3e4
    return row if listed else (*row[:2], *(items[0] for items in row[2:6]))


def _label(types: Types, *words: str) -> str:
    return "-".join((*map(dtype_name, types), *words))


def _arrays_of_numbers(i: int, scale: float, norm: float) -> tuple[Numbers, Numbers]:
    """Return (learning rate, step), (loss scale, norm) as arrays of one element; i picks dtypes."""
    kinds = [FLOATS[(i + k) % 4] for k in range(3)]
    return (one(0.01, kinds[0]), one(i, INT64)), (one(scale, kinds[1]), one(norm, kinds[2], ()))


def _ordinary(name: str, rows: tuple[Types, ...], maker: Any) -> Iterator[Sample]:
    """Yield two samples of operator `name` for each (weights, moments, gradients) dtypes in rows.

    The first has Python numbers, the second arrays of one element and low-precision weights.
    maker(rng, types=, ...) makes the inputs.
    """
    for i, types in enumerate(rows):
        mode, copy = MODES[i % 4], (FLOAT16, BFLOAT16)[i % 2]
        label, scale, norm = SCALES[i % 2]
        numbers, others = _arrays_of_numbers(i, scale, norm)
        yield Sample(name, _label(types, "ordinary"), partial(maker, types=types), mode)
        make = partial(maker, types=types, numbers=numbers, copy=copy, others=others)
        yield Sample(name, _label(types, "ordinary", label), make, mode)


def _options(name: str, rows: tuple[Types, ...], maker: Any) -> Iterator[Sample]:
    """Yield samples of operator `name`: special gradients, each loss scale, update signals.

    rows: dtypes (weights, moments, gradients) of those with special gradients. maker(rng, types=,
    ...) makes the other samples' inputs. Signals are numbers and arrays.
    """
    for types in rows:
        make = partial(_special, types=types, listed=maker is _full)
        yield Sample(name, _label(types, "special"), make)
    for label, scale, norm in SCALES:
        make = partial(maker, types=ROWS[0], copy=FLOAT16, others=(scale, norm, True))
        yield Sample(name, f"float32-{label}", make, {"max_norm_clip": 2.0})
    signals = (
        ("true", True, 3),
        ("false", False, 3),
        ("array-false", one(False, bool), one(3, INT64)),
    )
    for label, flag, step in signals:
        others = (None, None, flag)
        make = partial(maker, types=ROWS[3], numbers=(0.1, step), copy=BFLOAT16, others=others)
        yield Sample(name, f"float32-signal-{label}", make)


def _max_norms(name: str, maker: Any) -> Iterator[Sample]:
    """Yield samples of operator `name` with max_norm in an array of each dtype.

    maker(rng, types=, others=) makes its inputs.
    """
    for t in FLOATS:
        make = partial(maker, types=ROWS[0], others=(None, 5.0, None, one(0.5, t)))
        yield Sample(name, f"float32-max-norm-{dtype_name(t)}", make)


def _adam() -> Iterator[Sample]:
    """Yield samples of AdamOptimizer: types, attributes, shapes."""
    name = "AdamOptimizer"
    yield from _ordinary(name, ROWS, _single)
    yield from _options(name, ROWS, _single)
    for i, (label, shape, offset) in enumerate(SHAPES[1:]):
        for types in (ROWS[i % 7], ROWS[(i + 3) % 7]):
            make = partial(_single, types=types, shape=shape, copy=FLOAT16)
            yield Sample(name, _label(types, label), make, MODES[i % 4], offset)


def _adam_list() -> Iterator[Sample]:
    """Yield samples of AdamOptimizerList: types, lists of shapes, rules, random rounding."""
    name = "AdamOptimizerList"
    yield from _ordinary(name, LIST_ROWS, _full)
    yield from _options(name, LIST_ROWS, _full)
    for i, (label, shapes, offset) in enumerate(LISTS):
        for types in (LIST_ROWS[2 * i], LIST_ROWS[2 * i + 1]):
            make = partial(_full, types=types, shapes=shapes, copy=BFLOAT16)
            yield Sample(name, _label(types, label), make, MODES[i % 4], offset)
    yield from _max_norms(name, _full)
    for types, mode in zip(LIST_ROWS[::3], NEGATED, strict=False):
        yield Sample(name, _label(types, "negated"), partial(_full, types=types), mode)
    for i, (label, shapes, offset) in enumerate(LISTS):
        types = (BFLOAT16, (FLOAT32, BFLOAT16)[i % 2], BFLOAT16)
        make = partial(_full, types=types, shapes=shapes)
        yield Sample(name, _label(types, label, "seeded"), make, SEEDED, offset)


def _adam_largest() -> Iterator[Sample]:
    """Yield samples of AdamLargestList: types, lists, max_norm, random rounding, a skipped step."""
    name = "AdamLargestList"
    yield from _ordinary(name, LIST_ROWS, _with_largest)
    for i, (label, shapes, offset) in enumerate(LISTS):
        types = LIST_ROWS[-1 - i]
        make = partial(_with_largest, types=types, shapes=shapes, copy=BFLOAT16)
        yield Sample(name, _label(types, label), make, NEGATED[i % 2], offset)
    for i, t in enumerate(FLOATS):
        others = (None, 5.0, None, one(0.5, t))
        make = partial(_with_largest, types=LIST_ROWS[i], others=others)
        yield Sample(name, _label(LIST_ROWS[i], "max-norm", dtype_name(t)), make)
    make = partial(_with_largest, types=(BFLOAT16, FLOAT32, BFLOAT16))
    yield Sample(name, "bfloat16-seeded", make, SEEDED)
    make = partial(_with_largest, types=ROWS[0], others=(None, None, False))
    yield Sample(name, "float32-signal-False", make)


def _adam_coded() -> Iterator[Sample]:
    """Yield samples of AdamCodedList in codes of 8 bits, then of 4."""
    name = "AdamCodedList"
    yield from _ordinary(name, CODED_ROWS, _with_codes)
    for i, (label, shapes, offset) in enumerate(LISTS):
        types = CODED_ROWS[i % len(CODED_ROWS)]
        make = partial(_with_codes, types=types, shapes=shapes, copy=BFLOAT16)
        yield Sample(name, _label(types, label), make, MODES[i % 4], offset)
    yield from _max_norms(name, _with_codes)
    make = partial(_with_codes, types=CODED_ROWS[0], others=(None, None, False))
    yield Sample(name, "float32-signal-False", make)
    few = {"bits": 4, "lambda_": 0.1}
    for i, (label, shapes, offset) in enumerate(LISTS):
        types = CODED_ROWS[-1 - i % len(CODED_ROWS)]
        make = partial(_with_codes, types=types, bits=4, shapes=shapes)
        mode = few | {"maximize": True} if i % 2 else few | {"weight_decay_mode": 2}
        yield Sample(name, _label(types, label, "4"), make, mode, offset)
    make = partial(_with_codes, types=CODED_ROWS[0], bits=4, others=(None, None, False))
    yield Sample(name, "float32-signal-False-4", make, {"bits": 4})
    seeded = {"bits": 4, "rounding_seed": 2**64 - 1}
    make = partial(_with_codes, types=(BFLOAT16, FLOAT32, BFLOAT16), bits=4)
    yield Sample(name, "bfloat16-seeded-4", make, seeded)


def _adam_w() -> Iterator[Sample]:
    """Yield samples of AdamWOptimizer: types, modes, lists of shapes, skipped steps."""
    name = "AdamWOptimizer"
    for i, types in enumerate(LIST_ROWS):
        numbers, _ = _arrays_of_numbers(i, 1, 1)
        mode = ({}, {"adam_mode": 1}, {"adam_mode": 1, "correct_bias": False})[i % 3]
        yield Sample(name, _label(types, "ordinary"), partial(_plain, types=types), mode)
        make = partial(_plain, types=types, numbers=numbers, flag=(one(i % 2, bool),))
        yield Sample(name, _label(types, "ordinary-arrays"), make, mode)
    for i, (label, shapes, offset) in enumerate(LISTS):
        make = partial(_plain, types=LIST_ROWS[i], shapes=shapes)
        yield Sample(name, _label(LIST_ROWS[i], label), make, {}, offset)
    for flag in (False, True):
        make = partial(_plain, types=ROWS[0], flag=(flag,))
        yield Sample(name, f"float32-signal-{flag}", make)


SAMPLES = {
    "AdamCodedList": tuple(_adam_coded()),
    "AdamLargestList": tuple(_adam_largest()),
    "AdamOptimizer": tuple(_adam()),
    "AdamOptimizerList": tuple(_adam_list()),
    "AdamWOptimizer": tuple(_adam_w()),
}
