# SPDX-License-Identifier: MIT
"""Operators on boxes in images: which of them overlap, and what is inside of one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...dtypes import HostArray
from ...errors import ArgumentError
from .table import Array, Module, standard, wide


@standard("NonMaxSuppression", since=10, host=(2, 3, 4), grows=True)
def non_max_suppression(
    xp: Module,
    boxes: Array,
    scores: Array,
    most: Any = None,
    iou_threshold: Any = None,
    score_threshold: Any = None,
    *,
    center_point_box: bool = False,
) -> Array:
    """For each image and class the best boxes, of which no two overlap by more than the threshold.

    The rows are (image, class, box), those of a class from the best score down. All images and
    classes choose at once, a box at a time.
    """
    _check_boxes(boxes, scores)
    n = scores.shape[2]
    times = min(0 if most is None else int(most.reshape(-1)[0]), n)
    if times <= 0 or not scores.size:
        return xp.zeros((0, 3), np.int64)
    overlap = _overlaps(xp, *_corners(xp, boxes, center_point_box))
    overlaps = overlap > (0 if iou_threshold is None else float(iou_threshold.reshape(-1)[0]))
    is_open = xp.ones(scores.shape, bool)
    if score_threshold is not None:
        is_open = scores > float(score_threshold.reshape(-1)[0])
    images, chosen = xp.arange(len(scores))[:, None], []
    places = xp.arange(n)
    for _ in range(times):
        best = xp.where(is_open, scores, -np.inf).argmax(axis=-1)
        there = xp.take_along_axis(is_open, best[..., None], axis=-1)[..., 0]
        chosen.append(xp.where(there, best, -1))
        is_open &= ~(overlaps[images, best] | (places == best[..., None]))
    rows = xp.stack(chosen, axis=-1)
    image, cls, k = xp.nonzero(rows >= 0)
    return xp.stack([image, cls, rows[image, cls, k]], axis=-1).astype(np.int64)


def _check_boxes(boxes: Array, scores: Array) -> None:
    expected = (scores.shape[0], scores.shape[2], 4) if scores.ndim == 3 else None
    if expected is None or boxes.shape != expected:
        words = "(images, boxes, 4) and (images, classes, boxes)"
        raise ArgumentError(f"expected shapes {words}, got {boxes.shape} and {scores.shape}")


def _corners(xp: Module, boxes: Array, by_center: bool) -> tuple[Array, Array]:
    """The lower and the higher corner of each box, which says its centre and extents, or any two
    opposite corners."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if by_center:
        return first - second / 2, first + second / 2
    return xp.minimum(first, second), xp.maximum(first, second)


def _overlaps(xp: Module, low: Array, high: Array) -> Array:
    """Intersection over union of each two boxes of an image; 0 of boxes without an area."""
    sides = xp.minimum(high[:, :, None], high[:, None]) - xp.maximum(low[:, :, None], low[:, None])
    common = xp.maximum(sides, sides.dtype.type(0)).prod(axis=-1)
    areas = (high - low).prod(axis=-1)
    union = areas[:, :, None] + areas[:, None] - common
    return xp.where(common > 0, common / union, common)


MEAN = {"mode": ("avg",)}
SHIFTED = {"coordinate_transformation_mode": ("half_pixel", "output_half_pixel")}


@standard("RoiAlign", since=10, until=15, host=(1,), only=MEAN)
def roi_align_10(
    xp: Module,
    x: Array,
    rois: Any,
    images: Array,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Array:
    cells = output_height, output_width
    return _cells_of(xp, x, rois, images, cells, sampling_ratio, spatial_scale, False)


@standard("RoiAlign", since=16, host=(1,), only={**MEAN, **SHIFTED})
def roi_align(
    xp: Module,
    x: Array,
    rois: Any,
    images: Array,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    coordinate_transformation_mode: str = "half_pixel",
) -> Array:
    cells = output_height, output_width
    is_shifted = coordinate_transformation_mode == "half_pixel"
    return _cells_of(xp, x, rois, images, cells, sampling_ratio, spatial_scale, is_shifted)


def _cells_of(
    xp: Module,
    x: Array,
    rois: Any,
    images: Array,
    cells: tuple[int, int],
    ratio: int,
    scale: float,
    is_shifted: bool,
) -> Array:
    """For each box the means of its cells: of what bilinear interpolation finds at the points of a
    grid, ratio x ratio of them, or with 0 as many as a cell is pixels long."""
    if x.ndim != 4 or rois.ndim != 2 or rois.shape[1] != 4:
        words = "4 dimensions and rois of shape (boxes, 4)"
        raise ArgumentError(f"X: expected {words}, got {x.shape} and {rois.shape}")
    found = []
    for k, roi in enumerate(rois.astype(np.float64)):
        x0, y0, x1, y1 = roi * scale - (0.5 if is_shifted else 0)
        rows = _means(y0, y1, cells[0], x.shape[2], ratio, is_shifted)
        columns = _means(x0, x1, cells[1], x.shape[3], ratio, is_shifted)
        image = wide(xp.take(x, images[k : k + 1], axis=0)[0])
        by_rows, by_columns = (xp.asarray(m.astype(image.dtype)) for m in (rows, columns))
        found.append(xp.matmul(xp.matmul(by_rows, image), by_columns.T))
    if not found:
        return xp.zeros((0, x.shape[1], *cells), x.dtype)
    return xp.stack(found).astype(x.dtype, copy=False)


def _means(
    start: float, end: float, n_cells: int, extent: int, ratio: int, is_shifted: bool
) -> HostArray:
    """How much of each pixel along an axis is in the mean of each cell: (cells, pixels).

    Points more than a pixel outside find 0, those nearer the last pixel.
    """
    length = (end - start if is_shifted else max(end - start, 1.0)) / n_cells
    n = max(ratio if ratio > 0 else math.ceil(length), 0)
    means = np.zeros((n_cells, extent))
    for cell in range(n_cells):
        at = start + (cell + (np.arange(n) + 0.5) / max(n, 1)) * length
        at = np.clip(at[(at >= -1) & (at <= extent)], 0, extent - 1)
        low = np.floor(at).astype(np.int64)
        np.add.at(means[cell], low, (1 - (at - low)) / n)
        np.add.at(means[cell], np.minimum(low + 1, extent - 1), (at - low) / n)
    return means
