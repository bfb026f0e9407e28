# SPDX-License-Identifier: MIT
"""Dropout, its gradients, and both with softmax in NumPy. Formulas: `operators.py`.

ratio: the share of elements that become 0; None: 0.5. training_mode: False keeps all; None is False
in the forward, True in gradients. state: seed and offset of the random numbers; without it, the
attribute seed (None: 0) and offset 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, ParamSpec

import numpy as np

from ...dtypes import FLOAT64, Dtype, HostArray
from ...rules.pieces import pieces
from ...rules.widening import cast, quiet, wide
from ..softmax import reference as softmax
from . import philox
from .philox import DEFAULT_RATIO, dropout_scale

# Seed and offset as a tuple, or as an array, whose offset a draw raises by 1. None: (seed, 0).
State = Any
_Pair = tuple[HostArray, HostArray]
Given = ParamSpec("Given")


def _in_bits(function: Callable[Given, _Pair]) -> Callable[Given, _Pair]:
    """Return `function`, which gives (y, mask of bools), so that it packs the mask to uint32."""

    @functools.wraps(function)
    def in_bits(*inputs: Given.args, **attributes: Given.kwargs) -> _Pair:
        output, mask = function(*inputs, **attributes)
        return output, _pack_bits(mask)

    return in_bits


@quiet
def dropout(
    data: HostArray,
    ratio: float | None = None,
    training_mode: bool | None = None,
    state: State = None,
    *,
    seed: int | None,
) -> _Pair:
    """Return mask * data / (1 - ratio), and the mask of bools.

    ratio: the share that becomes 0, None: 0.5. training_mode: False or None keeps all. state:
    (seed, offset) of the random numbers, None: (seed, 0).
    """
    values, mask = _drop(data, wide(data), _ratio(ratio, bool(training_mode)), state, seed)
    return _rounded(values, data.dtype), mask


bitmask_dropout = _in_bits(dropout)


@quiet
def bias_dropout(
    data: HostArray,
    bias: HostArray,
    residual: HostArray | None = None,
    ratio: float | None = None,
    training_mode: bool | None = None,
    state: State = None,
    *,
    seed: int | None,
) -> _Pair:
    """Return dropout(data + bias) + residual, and the mask of bools.

    bias: shape of data or of its last axis. ratio: the share that becomes 0, None: 0.5.
    training_mode: False or None keeps all. state: (seed, offset) of the random numbers, None:
    (seed, 0).
    """
    total, applied = wide(data) + wide(bias), _ratio(ratio, bool(training_mode))
    values, mask = _drop(data, total, applied, state, seed)
    return _rounded(values if residual is None else values + wide(residual), data.dtype), mask


bitmask_bias_dropout = _in_bits(bias_dropout)


@quiet
def bias_softmax_dropout(
    data: HostArray,
    bias: HostArray,
    ratio: float | None = None,
    state: State = None,
    *,
    axis: int,
    is_inner_broadcast: bool,  # noqa: ARG001 - says which shapes a bias may have
    seed: int | None,
) -> tuple[HostArray, HostArray, HostArray]:
    """Return dropout(p), its mask, and p = softmax(data + bias) over dimensions from `axis` on.

    bias broadcasts to data. ratio: the share that becomes 0, None: 0.5. state: (seed, offset) of
    the random numbers, None: (seed, 0).
    """
    before = data.shape[: axis % data.ndim]
    rows = (*before, math.prod(data.shape[len(before) :]))
    total = data.astype(FLOAT64) + bias.astype(FLOAT64)
    p = softmax.softmax(total.reshape(rows), axis=-1).reshape(data.shape)
    values, mask = _drop(data, p, _ratio(ratio, True), state, seed)
    return cast(values, data.dtype), mask, cast(p, data.dtype)


@quiet
def dropout_grad(
    dy: HostArray,
    mask: HostArray,
    ratio: float | None = None,
    training_mode: bool | None = None,
) -> HostArray:
    """Return mask * dy / (1 - ratio), where the mask may have any shape of as many elements.

    ratio: None: 0.5. training_mode: False returns dy.
    """
    applied = _ratio(ratio, training_mode is not False)
    return _rounded(_through(wide(dy), mask.reshape(dy.shape), applied, dy), dy.dtype)


def bitmask_dropout_grad(
    dy: HostArray,
    mask: HostArray,
    ratio: float | None = None,
    training_mode: bool | None = None,
) -> HostArray:
    """Return dropout_grad with a mask of uint32: bit i % 32 of word i // 32 is element i's.

    ratio: None: 0.5. training_mode: False returns dy.
    """
    bits = np.unpackbits(mask.ravel().view(np.uint8), bitorder="little", count=dy.size)
    return dropout_grad(dy, bits.view(np.bool_), ratio, training_mode)


@quiet
def softmax_dropout_grad(
    dy: HostArray, mask: HostArray, softmax_y: HostArray, ratio: float | None = None, *, axis: int
) -> HostArray:
    """Return the gradient of p -> dropout(p), p = softmax(x) = softmax_y, by x.

    mask: bools, True where kept. ratio: None: 0.5. axis: rows are the dimensions from it on.
    """
    g = _through(dy.astype(FLOAT64), mask, _ratio(ratio, True), dy)
    return cast(softmax.softmax_grad(g, softmax_y, axis=axis), dy.dtype)


def _rounded(x: HostArray, dtype: Dtype) -> HostArray:
    """Return x in `dtype`: itself where it has that, else a rounded copy."""
    return x if x.dtype == dtype else cast(x, dtype)


def _ratio(ratio: float | None, training: bool) -> float:
    """Return the ratio to drop with: 0.5 where it is None; 0 without training."""
    return (DEFAULT_RATIO if ratio is None else ratio) if training else 0.0


def _drop(data: HostArray, total: HostArray, ratio: float, state: State, seed: int | None) -> _Pair:
    """Draw a mask; return total / (1 - ratio) where it is True, else 0; and the mask.

    data: the operator's input, whose shape the mask has and whose dtype decides the rounding.
    state, seed: of the random numbers.
    """
    mask = _draw(data, ratio, state, seed)
    return _through(total, mask, ratio, data), mask


def _draw(x: HostArray, ratio: float, state: State, seed: int | None) -> HostArray:
    """Draw the mask of x's shape, True where kept; add 1 to the offset of a state in an array.

    state: (seed, offset), or None for (seed, 0). At ratio 0 all are kept, and the state stays as it
    is.
    """
    mask = np.ones(x.size, np.bool_)
    if ratio > 0:
        start = ((seed or 0) % 2**64, 0) if state is None else state
        in_memory = isinstance(state, np.ndarray)
        for piece, part in philox.keep_masks(state.ravel() if in_memory else start, x.size, ratio):
            mask[piece] = part
        if in_memory:
            state.reshape(-1)[1:] += np.uint64(1)
    return mask.reshape(x.shape)


def _through(x: HostArray, mask: HostArray, ratio: float, like: HostArray) -> HostArray:
    """Return x / (1 - ratio) where the mask is True, else 0; at ratio 0 x, whatever the mask.

    like: has the operator's dtype, by which the factor is rounded.

    Bits are multiplied by 0 or 1: NaN and infinities give 0, too, and np.where takes six times as
    long where nothing is alike.
    """
    scale = dropout_scale(ratio, like.dtype)
    if not ratio:
        return np.asarray(x * scale)
    y = np.empty(x.shape, x.dtype)
    for of_x, of_mask, of_y in pieces(0, *(each.reshape(-1) for each in (x, mask, y))):
        np.multiply(of_x, scale, out=of_y)
        bits = of_y.view(f"u{y.itemsize}")
        np.multiply(bits, of_mask, out=bits)
    return y


def _pack_bits(mask: HostArray) -> HostArray:
    """Return the mask as uint32 words: bit i % 32 of word i / 32 is element i, the rest 0."""
    bits = np.packbits(mask, axis=None, bitorder="little")
    return np.pad(bits, (0, -bits.size % 4)).view(np.uint32)
