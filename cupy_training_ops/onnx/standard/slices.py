# SPDX-License-Identifier: MIT
"""Operators that select, reverse or write slices along an axis.

xp: numpy or cupy. Other parameters: the operator's inputs in ONNX's order; attributes by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...dtypes import BFLOAT16, BOOL, FLOAT32, UINT8
from ...errors import ArgumentError
from .shapes import extents
from .table import Array, Module, axis_of, standard


@standard("Compress", since=9)
def compress(xp: Module, x: Array, condition: Array, *, axis: int | None = None) -> Array:
    """Return the slices along an axis (None: elements of x) whose condition, a bool, is True.

    Slices behind the last condition are left out.
    """
    if condition.ndim != 1:
        raise ArgumentError(f"condition: expected 1 dimension, got {condition.ndim}")
    if axis is None:
        x, axis = x.reshape(-1), 0
    place = axis_of(axis, x.ndim)
    if condition.size > x.shape[place]:
        raise ArgumentError(
            f"condition: expected at most {x.shape[place]} elements, got {condition.size}"
        )
    return xp.take(x, xp.nonzero(condition)[0], axis=place)


@standard("Unique", since=11)
def unique(
    xp: Module, x: Array, *, axis: int | None = None, sorted: bool = True
) -> tuple[Array, ...]:
    """Return unique slices along an axis (None: elements), first indices, inverse, and counts.

    inverse[i]: index of slice i among the unique ones. These are in order, or, sorted=0, in that of
    their first indices.
    """
    if axis is None:
        x, place = x.reshape(-1), 0
    else:
        place = axis_of(axis, x.ndim)
    n = x.shape[place]
    rows = xp.moveaxis(x, place, 0).reshape(n, -1 if n else 0)
    rows = rows.astype(_SORTABLE.get(rows.dtype, rows.dtype), copy=False)
    # Slices as rows, sorted, so that equal ones are neighbours; is_new: the first of each.
    order = xp.lexsort(rows.T[::-1]) if rows.size else xp.arange(n)
    rows = rows[order]
    above, below = rows[:-1], rows[1:]
    is_new = xp.ones(n, bool)
    has_number = (above == above) | (below == below)  # two that are NaN are equal
    is_new[1:] = ((above != below) & has_number).any(axis=1)
    first, starts = order[is_new], xp.nonzero(is_new)[0]
    counts = xp.diff(xp.concatenate([starts, xp.full(1, n, starts.dtype)]))
    inverse = xp.zeros(n, np.int64)
    inverse[order] = xp.cumsum(is_new) - 1
    if not sorted:
        by_place = xp.argsort(first)
        first, counts = first[by_place], counts[by_place]
        inverse = xp.argsort(by_place)[inverse]
    y = xp.take(x, first, axis=place)
    return y, *(a.astype(np.int64) for a in (first, inverse, counts))


_SORTABLE = {BFLOAT16: FLOAT32, BOOL: UINT8}


@standard("ReverseSequence", since=10, only={"batch_axis": (1, 0), "time_axis": (0, 1)})
def reverse_sequence(
    xp: Module, x: Array, lengths: Array, *, batch_axis: int = 1, time_axis: int = 0
) -> Array:
    """Return x with the first lengths[b] elements of sequence b reversed."""
    if batch_axis == time_axis:
        raise ArgumentError(f"batch_axis: expected another than time_axis, got {batch_axis}")
    n, batch = x.shape[time_axis], x.shape[batch_axis]
    if lengths.shape != (batch,):
        raise ArgumentError(f"sequence_lens: expected shape ({batch},), got {lengths.shape}")
    refuse_beyond("sequence_lens", lengths, n)
    time = xp.arange(n)[:, None]
    places = xp.where(time < lengths, lengths - 1 - time, time)
    rows = xp.moveaxis(x, (time_axis, batch_axis), (0, 1))
    y = rows[places, xp.arange(batch)]
    return xp.moveaxis(y, (0, 1), (time_axis, batch_axis))


def refuse_beyond(name: str, values: Array, most: int) -> None:
    """Refuse values that are not from 0 to `most`, where they are on the host."""
    if isinstance(values, np.ndarray) and values.size:
        wrong = values[(values < 0) | (values > most)]
        if wrong.size:
            raise ArgumentError(f"{name}: expected from 0 to {most}, got {int(wrong.flat[0])}")


@standard("TensorScatter", since=24, only={"mode": ("linear", "circular")})
def tensor_scatter(
    xp: Module,
    cache: Array,
    update: Array,
    starts: Any = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Array:
    """Return a copy of the cache with update[b] written along the axis from starts[b] on.

    starts: one for each row b of the batch, None for 0. mode "circular": it wraps around.
    """
    place = axis_of(axis, cache.ndim)
    if place == 0:
        raise ArgumentError(f"axis: expected another than that of the batch, got {axis}")
    n, room, batch = update.shape[place], cache.shape[place], cache.shape[0]
    expected = (*cache.shape[:place], n, *cache.shape[place + 1 :])
    if update.shape != expected or n > room:
        raise ArgumentError(
            f"update: expected {cache.shape}, or less along axis {place}, got {update.shape}"
        )
    places = xp.broadcast_to(xp.arange(n), (batch, n))
    if starts is not None:
        if starts.shape != (batch,):
            raise ArgumentError(f"write_indices: expected shape ({batch},), got {starts.shape}")
        if mode == "linear":
            refuse_beyond("write_indices", starts, room - n)
        places = places + starts[:, None]
    if mode == "circular":
        places = places % max(room, 1)
    y = cache.copy()
    # With the axis as axis 1, [rows (batch, 1), places (batch, n)] picks (batch, n, ...).
    xp.moveaxis(y, place, 1)[xp.arange(batch)[:, None], places] = xp.moveaxis(update, place, 1)
    return y


@standard("CenterCropPad", since=18, host=(1,), grows=True)
def center_crop_pad(
    xp: Module, x: Array, shape: Any, *, axes: Sequence[int] | None = None
) -> Array:
    """Return the middle of x, or x in the middle of zeros, by the wanted `shape` of some axes.

    Of an odd difference, one more is cut or padded at the end.
    """
    chosen = range(x.ndim) if axes is None else [axis_of(axis, x.ndim) for axis in axes]
    wanted = extents(shape)
    if len(set(chosen)) != len(chosen) or len(wanted) != len(chosen):
        raise ArgumentError(f"shape: expected an extent for each axis, got {len(wanted)}")
    whole = list(x.shape)
    for axis, n in zip(chosen, wanted, strict=True):
        whole[axis] = n
    y = xp.zeros(extents(whole), x.dtype)
    pairs = list(zip(x.shape, whole, strict=True))
    source = tuple(slice(max(n - m, 0) // 2, max(n - m, 0) // 2 + min(n, m)) for n, m in pairs)
    target = tuple(slice(max(m - n, 0) // 2, max(m - n, 0) // 2 + min(n, m)) for n, m in pairs)
    y[target] = x[source]
    return y


@standard("ai.onnx.ml.ArrayFeatureExtractor")
def array_feature_extractor(xp: Module, x: Array, places: Array) -> Array:
    """Return the elements of the last axis at the indices `places`; a vector x becomes a row."""
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    return xp.take(rows, places.reshape(-1), axis=-1)
