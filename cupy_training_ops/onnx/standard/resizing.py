# SPDX-License-Identifier: MIT
"""Resize, axis by axis: each output is a sum of a few pixels, whose places are made on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...dtypes import HostArray
from .table import axis_of, standard

Array = Any
Module = Any

ROUND: dict[str, Callable[[HostArray], HostArray]] = {
    "round_prefer_floor": lambda s: np.ceil(s - 0.5),
    "round_prefer_ceil": lambda s: np.floor(s + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
TRANSFORMATIONS = (
    "half_pixel",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "half_pixel_symmetric",
)


def positions(n: int, m: int, scale: float, transformation: str) -> HostArray:
    """Where the m outputs of an axis lie among its n pixels."""
    o = np.arange(m, dtype=np.float64)
    if transformation == "align_corners":
        return o * ((n - 1) / (m - 1) if m > 1 else 0)
    if transformation == "asymmetric":
        return o / scale
    if transformation == "pytorch_half_pixel" and m <= 1:
        return np.zeros_like(o)
    if transformation in ("half_pixel", "pytorch_half_pixel"):
        return (o + 0.5) / scale - 0.5
    return n / 2 * (1 - m / (n * scale)) + (o + 0.5) / scale - 0.5


def taps(mode: str, s: HostArray, a: float) -> tuple[HostArray, HostArray]:
    """The pixels of each output, and their weights: arrays of (taps, outputs)."""
    low = np.floor(s)
    t = s - low
    if mode == "linear":
        return np.stack([low, low + 1]), np.stack([1 - t, t])
    near = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (t, 1 - t)]
    far = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in (t + 1, 2 - t)]
    weights = [far[0], near[0], near[1], far[1]]
    return low + np.arange(-1, 3)[:, None], np.stack(weights)


_ON_DEVICE: dict[object, Any] = {}  # on devices, for good: captured graphs read them
_MOST = 4096


def on_device(xp: Module, array: HostArray) -> Array:
    """An array that follows from extents alone, on the current device."""
    if xp is np:
        return array
    form = xp.cuda.runtime.getDevice(), array.dtype, array.shape, array.tobytes()
    if form in _ON_DEVICE:
        return _ON_DEVICE[form]
    copy = xp.asarray(array)
    return _ON_DEVICE.setdefault(form, copy) if len(_ON_DEVICE) < _MOST else copy


ONLY = {
    "antialias": (False,),
    "keep_aspect_ratio_policy": ("stretch",),
    "mode": ("nearest", "linear", "cubic"),
    "nearest_mode": tuple(ROUND),
    "coordinate_transformation_mode": TRANSFORMATIONS,
}


@standard("Resize", host=(1, 2, 3), grows=True, view=True, since=11, only=ONLY)
def resize(
    xp: Module,
    x: Array,
    roi: Any = None,
    scales: Any = None,
    sizes: Any = None,
    *,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    cubic_coeff_a: float = -0.75,
    exclude_outside: bool = False,
    extrapolation_value: float = 0.0,
    antialias: bool = False,
    axes: Sequence[int] | None = None,
    keep_aspect_ratio_policy: str = "stretch",
) -> Array:
    chosen = range(x.ndim) if axes is None else [axis_of(axis, x.ndim) for axis in axes]
    has_sizes = sizes is not None and len(sizes) > 0
    for i, axis in enumerate(chosen):
        n = x.shape[axis]
        scale = int(sizes[i]) / max(n, 1) if has_sizes else float(scales[i])
        m = int(sizes[i]) if has_sizes else int(np.floor(n * np.float32(scale)))
        if m == n and scale == 1:
            continue
        s = positions(n, m, scale, coordinate_transformation_mode)
        if mode == "nearest":
            x = xp.take(x, on_device(xp, _within(ROUND[nearest_mode](s), n)), axis=axis)
        else:
            x = _sum_taps(xp, x, axis, *_weigh(mode, s, n, cubic_coeff_a, exclude_outside))
    return x


def _within(pixels: HostArray, n: int) -> HostArray:
    return np.clip(pixels, 0, n - 1).astype(np.int64)


def _weigh(
    mode: str, s: HostArray, n: int, a: float, exclude_outside: int
) -> tuple[HostArray, HostArray]:
    """Pixels beyond an end are the last one's, or have no weight."""
    pixels, weights = taps(mode, s, a)
    if exclude_outside:
        weights = np.where((pixels >= 0) & (pixels < n), weights, 0)
        weights = weights / weights.sum(axis=0)
    return _within(pixels, n), weights


def _sum_taps(xp: Module, x: Array, axis: int, pixels: HostArray, weights: HostArray) -> Array:
    each = [-1 if i == axis else 1 for i in range(x.ndim)]
    total = None
    for rows, weight in zip(pixels, weights, strict=True):
        part = xp.take(x, on_device(xp, rows), axis=axis)
        part = part * on_device(xp, weight.astype(x.dtype)).reshape(each)
        total = part if total is None else total + part
    return total
