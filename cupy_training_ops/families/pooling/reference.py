# SPDX-License-Identifier: MIT
"""Pools in NumPy. Formulas: the classes of the same names in `operators.py`."""

from __future__ import annotations

import math
from typing import TypedDict, Unpack

import numpy as np

from ...dtypes import HostArray
from ...rules.widening import cast, quiet
from ..conv.extents import Shape
from .windows import Windows, windows_of


class _Attributes(TypedDict):
    """Attributes that all pools have."""

    auto_pad: str
    ceil_mode: bool
    dilations: Shape | None
    kernel_shape: Shape
    pads: Shape | None
    strides: Shape | None


@quiet
def max_pool(
    x: HostArray, *, storage_order: int, **attributes: Unpack[_Attributes]
) -> tuple[HostArray, HostArray]:
    """Return the largest element of each window, NaN before all, and its number in all of X.

    storage_order: 0 numbers a plane's elements along the last axis first, 1 along the first one.
    """
    windows = windows_of("MaxPool", x.shape, **attributes)
    numbers = _numbers(windows, storage_order)
    y = np.full(windows.y_shape, -np.inf, x.dtype)
    indices = np.full(windows.y_shape, -1)
    for at, elements in windows.taps():
        new, best = x[elements], y[at]
        better = (indices[at] < 0) | (new > best) | (np.isnan(new) & ~np.isnan(best))
        np.copyto(best, new, where=better)
        np.copyto(indices[at], numbers[elements], where=better)
    return y, indices


@quiet
def max_pool_grad(
    dy: HostArray,
    indices: HostArray,
    shape: Shape,
    *,
    storage_order: int,
    **attributes: Unpack[_Attributes],
) -> HostArray:
    """Return dX[i], of `shape`, = sum of dY over the windows whose largest element is i.

    indices: the numbers of these elements, by MaxPool with the same storage_order.
    """
    windows = windows_of("MaxPoolGrad", shape, **attributes)
    numbers, dx = _numbers(windows, storage_order), np.zeros(shape)
    for at, elements in windows.taps():
        dx[elements] += np.where(indices[at] == numbers[elements], dy[at], 0)
    return cast(dx, dy.dtype)


def _numbers(windows: Windows, storage_order: int) -> HostArray:
    """Return every element's number as MaxPool's Indices count it, in the shape of X.

    storage_order: 0 numbers a plane along its last axis first, 1 along its first axis.
    """
    planes = np.arange(windows.batch * windows.channels) * math.prod(windows.image)
    numbers = planes.reshape(windows.batch, windows.channels, *(1,) * len(windows.image))
    places = np.indices(windows.image, sparse=True)
    for place, step in zip(places, windows.numbers(storage_order), strict=True):
        numbers = numbers + place * step
    return numbers


@quiet
def average_pool(
    x: HostArray, *, count_include_pad: bool, **attributes: Unpack[_Attributes]
) -> HostArray:
    """Return the mean of each window's elements; count_include_pad: pads count, as zeros."""
    windows = windows_of("AveragePool", x.shape, **attributes)
    y = np.zeros(windows.y_shape)
    for at, elements in windows.taps():
        y[at] += x[elements]
    return cast(y / _counts(windows, count_include_pad), x.dtype)


@quiet
def average_pool_grad(
    dy: HostArray,
    shape: Shape,
    *,
    count_include_pad: bool,
    **attributes: Unpack[_Attributes],
) -> HostArray:
    """Return dX[i], of `shape`, = sum of dY / count over the windows that contain i.

    count: elements of a window, with count_include_pad also in pads.
    """
    windows = windows_of("AveragePoolGrad", shape, **attributes)
    shares, dx = dy / _counts(windows, count_include_pad), np.zeros(shape)
    for at, elements in windows.taps():
        dx[elements] += shares[at]
    return cast(dx, dy.dtype)


def _counts(windows: Windows, include_pad: bool) -> HostArray:
    """Return how many elements of each window count, in the shape of a plane of Y; at least 1.

    include_pad: elements in pads count too.
    """
    counts = np.ones(())
    for axis in windows.axes:
        places = np.arange(axis.output) * axis.stride - axis.pad
        taps = places[:, None] + np.arange(axis.kernel) * axis.dilation
        first, last = (-axis.pad, axis.pads_end) if include_pad else (0, axis.image)
        counts = counts[..., None] * ((taps >= first) & (taps < last)).sum(1)
    return np.maximum(counts, 1)


@quiet
def global_average_pool(x: HostArray) -> HostArray:
    """Return the mean over all axes from the third on, which stay with extent 1."""
    axes = tuple(range(2, x.ndim))
    return cast(x.mean(axes, dtype=np.float64, keepdims=True), x.dtype)
