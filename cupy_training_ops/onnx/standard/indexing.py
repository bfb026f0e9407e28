# SPDX-License-Identifier: MIT
"""Operators that take and put elements by index; indices out of range are refused on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import ArgumentError, shown
from .arrays import wide
from .table import axis_of, standard

Array = Any
Module = Any


@standard("Gather")
def gather(xp: Module, x: Array, indices: Array, *, axis: int = 0) -> Array:
    if indices.ndim == 0 and isinstance(indices, np.ndarray):
        return xp.take(x, int(indices), axis=axis)
    return xp.take(x, indices, axis=axis)


@standard("GatherElements")
def gather_elements(xp: Module, x: Array, indices: Array, *, axis: int = 0) -> Array:
    return x[_along(xp, x, indices, axis)]


@standard("GatherND", view=True)
def gather_nd(xp: Module, x: Array, indices: Array, *, batch_dims: int = 0) -> Array:
    batch = tuple(
        xp.arange(n).reshape([-1 if j == i else 1 for j in range(indices.ndim - 1)])
        for i, n in enumerate(x.shape[:batch_dims])
    )
    places = (*batch, *(indices[..., i] for i in range(indices.shape[-1])))
    if indices.shape[-1]:
        return x[places]
    apart = (1,) * (indices.ndim - 1 - batch_dims)  # every place is the whole of its batch
    whole = x.reshape(x.shape[:batch_dims] + apart + x.shape[batch_dims:])
    return xp.broadcast_to(whole, indices.shape[:-1] + x.shape[batch_dims:]).copy()


@standard("ScatterElements", "Scatter")
def scatter_elements(
    xp: Module,
    x: Array,
    indices: Array,
    updates: Array,
    *,
    axis: int = 0,
    reduction: str = "none",
) -> Array:
    return _scatter(xp, x, _along(xp, x, indices, axis), updates, reduction)


@standard("ScatterND")
def scatter_nd(
    xp: Module, x: Array, indices: Array, updates: Array, *, reduction: str = "none"
) -> Array:
    places = tuple(indices[..., i] for i in range(indices.shape[-1]))
    return _scatter(xp, x, places, updates, reduction)


def _along(xp: Module, x: Array, indices: Array, axis: int) -> tuple[Array, ...]:
    """Indices of all dimensions, where `indices` are those along the axis."""
    result = []
    place = axis_of(axis, x.ndim)
    for i, n in enumerate(indices.shape):
        shape = [-1 if j == i else 1 for j in range(indices.ndim)]
        result.append(indices if i == place else xp.arange(n).reshape(shape))
    return tuple(result)


def _scatter(
    xp: Module, x: Array, places: tuple[Array, ...], updates: Array, reduction: str
) -> Array:
    y = x.copy()
    if reduction == "none":
        y[places] = updates
        return y
    functions = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}
    if reduction not in functions:
        raise ArgumentError(
            f"expected a reduction among {sorted(functions)}, got {shown(reduction)}"
        )
    y = wide(y)
    getattr(xp, functions[reduction]).at(y, places, wide(updates))
    return y.astype(x.dtype, copy=False)


@standard("OneHot", host=(1,), grows=True)
def one_hot(xp: Module, indices: Array, depth: Any, values: Array, *, axis: int = -1) -> Array:
    n = int(depth.reshape(-1)[0])
    place = axis_of(axis, indices.ndim + 1)
    shape = [-1 if i == place else 1 for i in range(indices.ndim + 1)]
    counted = xp.where(indices < 0, indices + n, indices)
    hot = xp.expand_dims(counted, place) == xp.arange(n).reshape(shape)
    return xp.where(hot, values[1], values[0])


@standard("TopK", host=(1,), since=10)
def top_k(
    xp: Module, x: Array, k: Any, *, axis: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Array, Array]:
    """The k largest or smallest; of equal elements the first ones, as upstream has it."""
    n = int(k.reshape(-1)[0])
    if not 0 <= n <= x.shape[axis]:
        raise ArgumentError(f"K: expected 0 to {x.shape[axis]}, got {n}")
    order = xp.argsort(x, axis=axis, kind="stable")
    if largest:
        flipped = xp.argsort(xp.flip(x, axis), axis=axis, kind="stable")
        order = xp.flip(x.shape[axis] - 1 - flipped, axis)
    cut = [slice(None)] * x.ndim
    cut[axis] = slice(0, n)
    chosen = order[tuple(cut)].astype(np.int64)
    return xp.take_along_axis(x, chosen, axis), chosen


@standard("Trilu", host=(1,))
def trilu(xp: Module, x: Array, k: Any = None, *, upper: bool = True) -> Array:
    if x.ndim < 2:
        raise ArgumentError(f"expected at least 2 dimensions, got {x.ndim}")
    return (xp.triu if upper else xp.tril)(x, 0 if k is None else int(k.reshape(-1)[0]))


@standard("NonZero")
def non_zero(xp: Module, x: Array) -> Array:
    return xp.stack(xp.nonzero(x)).astype(np.int64)


@standard("SequenceConstruct", keeps=True)
def sequence_construct(xp: Module, *arrays: Array) -> list[Array]:
    return list(arrays)


@standard("SequenceAt", host=(1,), view=True)
def sequence_at(xp: Module, arrays: list[Array], place: Any) -> Array:
    return arrays[int(place)]
