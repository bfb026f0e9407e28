# SPDX-License-Identifier: MIT
"""Sample inputs of dropout; each has a state, so that all providers draw the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...dtypes import FLOATS, dtype_name
from ...samples import Generator, Sample, Shape
from . import reference as cpu
from .operators import OPS

SEED, LARGE_SEED, OFFSET = 11, 2**63 + 11, 5
SPECIALS = (0.0, -0.0, np.nan, np.inf, -np.inf, 6e-8, 3e4, -7.0)
NEAR_1 = 1 - 2.0**-24


@dataclass(frozen=True)
class Call:
    """An element-wise call, with data of `shape`, a ratio (None: left out) and training_mode.

    `offset`: elements that arrays begin off alignment. `row`: the bias has one row of data's.
    `moving`: the state is an array. `seed`: of the state.
    """

    label: str
    shape: Shape
    ratio: float | None = 0.3
    training: bool | None = True
    offset: int = 0
    row: bool = True
    moving: bool = False
    seed: int = SEED


# 67 and 1,003 leave 3 of 4 and 3 and 11 of 32; (5, 1640) fills several blocks and ends inside one.
CALLS = (
    Call("odd", (3, 5, 7), ratio=NEAR_1),
    Call("empty", (0, 4)),
    Call("one", (1,), ratio=None),
    Call("misaligned", (1003,), offset=1),
    Call("large", (5, 1640), seed=LARGE_SEED),
    Call("identity", (9, 30), training=False),
    Call("nothing-dropped", (9, 30), ratio=0.0),
    Call("moving", (67,), moving=True),
    Call("whole-bias", (130, 3), row=False),
)


@dataclass(frozen=True)
class Rows:
    """A call over rows: shapes of data and bias, and the `axis` that rows begin at.

    `inner`: is_inner_broadcast. `offset`: elements that arrays begin off alignment. `moving`: the
    state is an array.
    """

    label: str
    shape: Shape
    bias: Shape
    axis: int = 1
    inner: bool = False
    ratio: float | None = 0.3
    offset: int = 0
    moving: bool = False
    seed: int = SEED


# "large" takes a block several times; "row-edges" begin and end off 16 bytes.
ROWS = (
    Rows("odd-outer", (3, 5, 7), (5, 7), 2),
    Rows("inner", (3, 4, 2, 40), (3, 1, 1, 40), -1, inner=True, ratio=0.0),
    Rows("inner-edges", (2, 3, 37), (2, 1, 37), 2, inner=True, ratio=None),
    Rows("outer", (3, 4, 2, 20), (2, 20), 2, ratio=NEAR_1),
    Rows("empty", (0, 4), (0, 4)),
    Rows("empty-rows", (4, 0), (1, 0)),
    Rows("one", (1, 1), (1, 1)),
    Rows("misaligned", (3, 1003), (3, 1003), offset=1),
    Rows("row-edges", (5, 1025), (5, 1025), seed=LARGE_SEED),
    Rows("large", (2, 9001), (2, 9001), -1),
    Rows("moving", (2, 3, 8), (2, 3, 8), 2, moving=True),
)


def state(call: Call | Rows) -> Any:
    """Return the state (seed, offset): a tuple, or an array that the call raises the offset of."""
    numbers = call.seed, OFFSET
    return np.array(numbers, np.uint64) if call.moving else numbers


def values(rng: Generator, shape: Shape, dtype: Any) -> Any:
    """Return random normal numbers; SPECIALS come first in arrays of more than 64 elements."""
    x = np.asarray(rng.standard_normal(shape)).astype(dtype)
    if x.size > 8 * len(SPECIALS):
        with np.errstate(over="ignore"):
            x.reshape(-1)[: len(SPECIALS)] = np.array(SPECIALS).astype(dtype)
    return x


def inputs(rng: Generator, name: str, call: Call, dtype: Any) -> tuple[Any, ...]:
    """Return inputs of the element-wise operator `name`, with call's shape, ratio and state.

    A gradient gets a mask that its forward draws with ratio 0.4.
    """
    x = values(rng, call.shape, dtype)
    if name.endswith("Grad"):
        forward = cpu.bitmask_dropout if name.startswith("Bit") else cpu.dropout
        return x, forward(x, 0.4, True, (SEED, OFFSET), seed=None)[1], call.ratio, call.training
    last = (call.ratio, call.training, state(call))
    if "Bias" not in name:
        return x, *last
    bias = values(rng, call.shape[-1:] if call.row else call.shape, dtype)
    residual = None if call.row else values(rng, call.shape, dtype)
    return x, bias, residual, *last


def of_rows(rng: Generator, name: str, call: Rows, dtype: Any) -> tuple[Any, ...]:
    """Return the inputs of the operator `name` over rows, with shapes and ratio of `call`.

    A gradient gets the outputs of its forward, with ratio 0.4.
    """
    x = rng.standard_normal(call.shape).astype(dtype)
    bias = rng.standard_normal(call.bias).astype(dtype)
    if name == "BiasSoftmaxDropout":
        return x, bias, call.ratio, state(call)
    forward = partial(cpu.bias_softmax_dropout, axis=call.axis, is_inner_broadcast=call.inner)
    _, mask, y = forward(x, bias, 0.4, (SEED, OFFSET), seed=None)
    if call.ratio == NEAR_1:  # else what cancels is 2^24 times as large as what is left
        x *= x.dtype.type(1 - NEAR_1)
    return x, mask, y, call.ratio


def _special_rows(rng: Generator, dtype: Any) -> tuple[Any, ...]:
    """Return inputs whose bias is -inf for row 0 and a part of row 1; data has NaN and inf."""
    x, bias = (2 * rng.standard_normal((5, 67)) for _ in range(2))
    bias[0], bias[1, 3:40], x[2, 5], x[3, 66] = -np.inf, -np.inf, np.nan, np.inf
    return x.astype(dtype), bias.astype(dtype), 0.5, (SEED, OFFSET)


def _elementwise(name: str, number: int) -> Iterator[Sample]:
    """Yield samples: an ordinary one of each dtype; CALLS of dtypes in turn, from `number` on."""
    for dtype in FLOATS:
        make = partial(inputs, name=name, call=Call("ordinary", (16, 64)), dtype=dtype)
        yield Sample(name, f"{dtype_name(dtype)}-ordinary", make)
    for i, call in enumerate(CALLS):
        dtype = FLOATS[(i + number) % 4]
        make = partial(inputs, name=name, call=call, dtype=dtype)
        yield Sample(name, f"{dtype_name(dtype)}-{call.label}", make, {}, call.offset)


def _over_rows(name: str, number: int) -> Iterator[Sample]:
    """Yield samples: an ordinary one of each dtype; ROWS of dtypes in turn, from `number` on."""
    for dtype in FLOATS:
        call = Rows("ordinary", (16, 64), (16, 64))
        make = partial(of_rows, name=name, call=call, dtype=dtype)
        yield Sample(name, f"{dtype_name(dtype)}-ordinary", make, _attributes(name, call))
    for i, call in enumerate(ROWS):
        dtype = FLOATS[(i + number) % 4]
        make = partial(of_rows, name=name, call=call, dtype=dtype)
        label = f"{dtype_name(dtype)}-{call.label}"
        yield Sample(name, label, make, _attributes(name, call), call.offset)
    if name == "BiasSoftmaxDropout":
        for dtype in FLOATS[:2]:
            make = partial(_special_rows, dtype=dtype)
            yield Sample(name, f"{dtype_name(dtype)}-special", make, {"is_inner_broadcast": True})


def _attributes(name: str, call: Rows) -> dict[str, Any]:
    """Return axis, and is_inner_broadcast for the operator that has it."""
    bias = {"is_inner_broadcast": call.inner} if name.startswith("Bias") else {}
    return {"axis": call.axis, **bias}


SAMPLES = {
    name: tuple((_over_rows if "Softmax" in name else _elementwise)(name, i))
    for i, name in enumerate(OPS)
}
