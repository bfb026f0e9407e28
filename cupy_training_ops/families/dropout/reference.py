# SPDX-License-Identifier: MIT
"""Dropout, its gradients, and both with softmax in NumPy. Formulas: `operators.py`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...dtypes import FLOAT64, HostArray
from ...rules.widening import cast, wide
from ..softmax import reference as softmax
from . import philox
from .ratio import DEFAULT_RATIO, dropout_scale

# Two numbers, or an array of them, of which the offset goes on. None draws as the function does.
State = Any
_Pair = tuple[HostArray, HostArray]

# Infinite and NaN elements, and overflow, are part of the operators.
_quiet = np.errstate(all="ignore")


@_quiet
def dropout(
    data: HostArray,
    ratio: float | None = None,
    training_mode: bool | None = None,
    state: State = None,
    *,
    seed: int | None = None,
) -> _Pair:
    applied = _applied(ratio, bool(training_mode))
    mask = _drawn(data, applied, state, seed)
    return cast(_through(wide(data), mask, applied, data), data.dtype), mask


def bitmask_dropout(
    data: HostArray,
    ratio: float | None = None,
    training_mode: bool | None = None,
    state: State = None,
    *,
    seed: int | None = None,
) -> _Pair:
    output, mask = dropout(data, ratio, training_mode, state, seed=seed)
    return output, _packed(mask)


@_quiet
def bias_dropout(
    data: HostArray,
    bias: HostArray,
    residual: HostArray | None = None,
    ratio: float | None = None,
    training_mode: bool | None = None,
    state: State = None,
    *,
    seed: int | None = None,
) -> _Pair:
    applied = _applied(ratio, bool(training_mode))
    mask = _drawn(data, applied, state, seed)
    total = _through(wide(data) + wide(bias), mask, applied, data)
    return cast(total if residual is None else total + wide(residual), data.dtype), mask


def bitmask_bias_dropout(
    data: HostArray,
    bias: HostArray,
    residual: HostArray | None = None,
    ratio: float | None = None,
    training_mode: bool | None = None,
    state: State = None,
    *,
    seed: int | None = None,
) -> _Pair:
    output, mask = bias_dropout(data, bias, residual, ratio, training_mode, state, seed=seed)
    return output, _packed(mask)


@_quiet
def bias_softmax_dropout(
    data: HostArray,
    bias: HostArray,
    ratio: float | None = None,
    state: State = None,
    *,
    axis: int = 1,
    is_inner_broadcast: bool,  # noqa: ARG001 - which shapes of a bias are taken
    seed: int | None = None,
) -> tuple[HostArray, HostArray, HostArray]:
    applied = _applied(ratio, True)
    mask = _drawn(data, applied, state, seed)
    before = data.shape[: axis % data.ndim]
    rows = (*before, math.prod(data.shape[len(before) :]))
    total = data.astype(FLOAT64) + bias.astype(FLOAT64)
    p = softmax.softmax(total.reshape(rows)).reshape(data.shape)
    return cast(_through(p, mask, applied, data), data.dtype), mask, cast(p, data.dtype)


@_quiet
def dropout_grad(
    dy: HostArray,
    mask: HostArray,
    ratio: float | None = None,
    training_mode: bool | None = None,
) -> HostArray:
    applied = _applied(ratio, training_mode is not False)
    kept = mask.reshape(dy.shape) if applied else np.ones(dy.shape, np.bool_)
    return cast(_through(wide(dy), kept, applied, dy), dy.dtype)


def bitmask_dropout_grad(
    dy: HostArray,
    mask: HostArray,
    ratio: float | None = None,
    training_mode: bool | None = None,
) -> HostArray:
    bits = np.unpackbits(mask.ravel().view(np.uint8), bitorder="little", count=dy.size)
    return dropout_grad(dy, bits.view(np.bool_), ratio, training_mode)


@_quiet
def softmax_dropout_grad(
    dy: HostArray, mask: HostArray, softmax_y: HostArray, ratio: float | None = None, *, axis: int
) -> HostArray:
    applied = _applied(ratio, True)
    kept = mask if applied else np.ones_like(mask)
    g = _through(dy.astype(FLOAT64), kept, applied, dy)
    return cast(softmax.softmax_grad(g, softmax_y, axis=axis), dy.dtype)


def _applied(ratio: float | None, training: bool) -> float:
    """The ratio that elements are dropped with, 0 where it is the identity."""
    return (DEFAULT_RATIO if ratio is None else ratio) if training else 0.0


def _drawn(x: HostArray, ratio: float, state: State, seed: int | None) -> HostArray:
    """Which elements are kept. Nothing is drawn at ratio 0, and a state then stays."""
    mask = np.ones(x.size, np.bool_)
    if ratio > 0:
        start = ((seed or 0) % 2**64, 0) if state is None else state
        in_memory = isinstance(state, np.ndarray)
        for piece, kept in philox.kept(state.ravel() if in_memory else start, x.size, ratio):
            mask[piece] = kept
        if in_memory:
            state.reshape(-1)[1:] += np.uint64(1)
    return mask.reshape(x.shape)


def _through(x: HostArray, mask: HostArray, ratio: float, like: HostArray) -> HostArray:
    """x scaled where the mask is True, else 0; in the type that x is in."""
    scale = dropout_scale(ratio, like.dtype)
    return np.asarray(np.where(mask, x * scale, x.dtype.type(0)))


def _packed(mask: HostArray) -> HostArray:
    """A bit for each element, those past the last 0."""
    bits = np.packbits(mask, axis=None, bitorder="little")
    return np.pad(bits, (0, -bits.size % 4)).view(np.uint32)
