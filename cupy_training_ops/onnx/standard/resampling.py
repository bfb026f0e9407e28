# SPDX-License-Identifier: MIT
"""Which pixels each output of Resize is a weighted sum of, along one axis; made on the host.

n: pixels of the axis; m: outputs; scale: outputs a pixel; places: of the outputs, in pixels, with
pixel k at k.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...dtypes import HostArray

ROUND: dict[str, Callable[[HostArray], HostArray]] = {  # by Resize's nearest_mode
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
CROP = "tf_crop_and_resize"


def positions(n: int, m: int, scale: float, transformation: str) -> HostArray:
    """Return the places of the m outputs; transformation: Resize's mode for coordinates."""
    o = np.arange(m, dtype=np.float64)
    if transformation == "align_corners":
        return o * ((n - 1) / (m - 1) if m > 1 else 0)
    if transformation == "asymmetric":
        return o / scale
    if transformation == "pytorch_half_pixel" and m <= 1:
        return np.zeros_like(o)
    if transformation in ("half_pixel", "pytorch_half_pixel"):
        return (o + 0.5) / scale - 0.5
    # half_pixel_symmetric: moved so that the middles agree, where m is not n * scale.
    return n / 2 * (1 - m / (n * scale)) + (o + 0.5) / scale - 0.5


def positions_in_crop(n: int, m: int, start: float, end: float) -> HostArray:
    """Return the places of m outputs from `start` to `end` of an axis, both shares of n - 1."""
    if m == 1:
        return np.array([(start + end) / 2 * (n - 1)])
    return (start + np.arange(m) * ((end - start) / max(m - 1, 1))) * (n - 1)


def taps(mode: str, places: HostArray, a: float, scale: float = 1.0) -> tuple[HostArray, HostArray]:
    """Return the pixels that each output reads, and their weights: two arrays of (taps, outputs).

    mode: "linear" or "cubic". a: the coefficient of cubic convolution. A scale below 1 widens the
    windows (antialiasing), so that each pixel has its share in some output. Pixels may be outside.
    """
    low = np.floor(places)
    t = places - low
    if scale < 1:
        return _wide_taps(mode, places, a, scale)
    if mode == "linear":
        return np.stack([low, low + 1]), np.stack([1 - t, t])
    near = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (t, 1 - t)]
    far = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in (t + 1, 2 - t)]
    weights = [far[0], near[0], near[1], far[1]]
    return low + np.arange(-1, 3)[:, None], np.stack(weights)


def _wide_taps(mode: str, places: HostArray, a: float, scale: float) -> tuple[HostArray, HostArray]:
    """Return pixels and weights, (taps, outputs) each, of windows 1 / scale as wide; scale < 1.

    mode: "linear" or "cubic", which has the coefficient a. An output's weights sum up to 1.
    """
    radius = (1 if mode == "linear" else 2) / scale
    first = np.floor(places - radius) + 1
    pixels = first + np.arange(int(np.ceil(2 * radius)))[:, None]
    d = np.abs(pixels - places) * scale
    if mode == "linear":
        weights = np.maximum(1 - d, 0)
    else:
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        weights = np.where(d <= 1, near, np.where(d < 2, far, 0))
    return pixels, weights / weights.sum(axis=0)


def within(pixels: HostArray, n: int) -> HostArray:
    """Return pixels clipped to 0 to n - 1, as int64."""
    return np.clip(pixels, 0, n - 1).astype(np.int64)


def weigh(
    mode: str, places: HostArray, n: int, a: float, exclude_outside: bool, scale: float
) -> tuple[HostArray, HostArray]:
    """Return pixels from 0 to n - 1 and their weights, both arrays of (taps, outputs).

    places: of the outputs among the n pixels of an axis. a: coefficient of mode "cubic". scale:
    outputs a pixel; below 1 it widens the windows. exclude_outside: pixels beyond an end have no
    weight; else they are the last one.
    """
    pixels, weights = taps(mode, places, a, scale)
    if exclude_outside:
        weights = np.where((pixels >= 0) & (pixels < n), weights, 0)
        weights = weights / weights.sum(axis=0)
    return within(pixels, n), weights


def fit_sizes(sizes: list[int], extents: list[int], policy: str) -> tuple[list[int], list[float]]:
    """Return extents and scales of chosen axes for wanted sizes, by keep_aspect_ratio_policy.

    With another policy than "stretch" all scales are the same: the least or the largest.
    """
    scales = [size / max(n, 1) for size, n in zip(sizes, extents, strict=True)]
    if policy == "stretch" or not scales:
        return sizes, scales
    scale = min(scales) if policy == "not_larger" else max(scales)
    return [int(np.floor(scale * n + 0.5)) for n in extents], [scale] * len(scales)
