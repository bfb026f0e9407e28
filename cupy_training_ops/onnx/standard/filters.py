# SPDX-License-Identifier: MIT
"""Numbers of Resize that follow from extents alone: where outputs lie, and what they weigh."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...dtypes import HostArray
from ...errors import ArgumentError

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
    "tf_crop_and_resize",
)


def positions(
    n: int, m: int, scale: float, transformation: str, part: tuple[float, float] = (0.0, 1.0)
) -> HostArray:
    """Where the m outputs of an axis lie among its n pixels, or among a part of them."""
    o = np.arange(m, dtype=np.float64)
    if transformation == "tf_crop_and_resize":
        start, end = part
        if m <= 1:
            return o + 0.5 * (start + end) * (n - 1)
        return start * (n - 1) + o * ((end - start) * (n - 1) / (m - 1))
    if transformation == "align_corners":
        return o * ((n - 1) / (m - 1) if m > 1 else 0)
    if transformation == "asymmetric":
        return o / scale
    if transformation == "pytorch_half_pixel" and m <= 1:
        return np.zeros_like(o)
    if transformation in ("half_pixel", "pytorch_half_pixel"):
        return (o + 0.5) / scale - 0.5
    return n / 2 * (1 - m / (n * scale)) + (o + 0.5) / scale - 0.5


def taps(mode: str, s: HostArray, a: float, width: float = 1.0) -> tuple[HostArray, HostArray]:
    """The pixels of each output, and their weights: arrays of (taps, outputs).

    width: how much wider than its own the filter is, so that no pixel between outputs is lost.
    """
    reach = (1 if mode == "linear" else 2) * width
    pixels = np.floor(s) + np.arange(1 - math.ceil(reach), 1 + math.ceil(reach))[:, None]
    d = np.abs(pixels - s) / width
    if mode == "linear":
        weights = np.maximum(1 - d, 0)
    else:
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        weights = np.where(d <= 1, near, np.where(d < 2, far, 0))
    return pixels, weights if width == 1 else weights / weights.sum(axis=0)


def scales_of(
    extents: Sequence[int], scales: Any, sizes: Any, policy: str
) -> list[tuple[float, int]]:
    """The scale and the new extent of each axis."""
    has_sizes = sizes is not None and len(sizes) > 0
    values = sizes if has_sizes else scales
    if values is None or len(values) != len(extents):
        got = "none" if values is None else len(values)
        name = "sizes" if has_sizes else "scales"
        raise ArgumentError(f"{name}: expected {len(extents)} numbers, got {got}")
    if not has_sizes:
        factors = [float(scale) for scale in scales]
        wholes = [int(np.floor(n * np.float32(s))) for n, s in zip(extents, factors, strict=True)]
        return list(zip(factors, wholes, strict=True))
    wanted = [int(size) for size in sizes]
    own = [m / max(n, 1) for n, m in zip(extents, wanted, strict=True)]
    if policy == "stretch":
        return list(zip(own, wanted, strict=True))
    scale = min(own) if policy == "not_larger" else max(own)
    return [(scale, math.floor(scale * n + 0.5)) for n in extents]


def within(pixels: HostArray, n: int) -> HostArray:
    """Pixels beyond an end are the last one's."""
    return np.clip(pixels, 0, n - 1).astype(np.int64)


def weigh(
    pixels: HostArray, weights: HostArray, n: int, exclude_outside: bool
) -> tuple[HostArray, HostArray]:
    """Pixels beyond an end are the last one's, or have no weight."""
    if exclude_outside:
        weights = np.where((pixels >= 0) & (pixels < n), weights, 0)
        weights = weights / weights.sum(axis=0)
    return within(pixels, n), weights
