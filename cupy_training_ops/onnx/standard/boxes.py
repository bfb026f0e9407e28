# SPDX-License-Identifier: MIT
"""Boxes in images: the best ones that do not overlap.

xp: numpy or cupy. Other parameters: the operator's inputs in ONNX's order; attributes by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import ArgumentError
from .elementwise import scalar
from .table import Array, Module, standard, wide


@standard("NonMaxSuppression", since=10, host=(2, 3, 4), only={"center_point_box": (0, 1)})
def non_max_suppression(
    xp: Module,
    boxes: Array,
    scores: Array,
    most: Any = None,
    overlap: Any = None,
    least: Any = None,
    *,
    center_point_box: int = 0,
) -> Array:
    """Return rows of indices (batch, class, box) of the chosen boxes, a class's best one first.

    boxes: (N, boxes, 4). scores: (N, classes, boxes). most: boxes of a class, at most. overlap: a
    box is left out if its intersection over union with a better one is more. least: score, at
    least. All batches and classes go from the best box to the next together.
    """
    batch, classes, n = _check(boxes, scores)
    limit = 0 if most is None or not most.size else int(most.reshape(-1)[0])
    share = 0.0 if overlap is None or not overlap.size else float(overlap.reshape(-1)[0])
    if not 0 <= share <= 1:
        raise ArgumentError(f"iou_threshold: expected from 0 to 1, got {share}")
    if limit <= 0 or 0 in (batch, classes, n):
        return xp.zeros((0, 3), np.int64)
    scores = wide(scores)
    order = xp.argsort(-scores, axis=2, kind="stable")
    is_left = xp.ones(scores.shape, bool)
    if least is not None and least.size:
        is_left &= scores >= scalar(scores, float(least.reshape(-1)[0]))
    low, high = _corners(xp, wide(boxes), center_point_box)
    sizes = (high - low).prod(axis=2)
    rows, columns = xp.arange(batch)[:, None], xp.arange(classes)[None, :]
    is_chosen = xp.zeros(scores.shape, bool)  # by rank
    n_chosen = xp.zeros((batch, classes), np.int64)
    for rank in range(n):
        best = order[:, :, rank]  # the box of this rank in each class: (N, classes)
        takes = is_left[rows, columns, best] & (n_chosen < limit)
        is_chosen[:, :, rank] = takes
        n_chosen += takes
        # Its intersections with all boxes of the image: (N, classes, boxes, 2), then their areas.
        sides = xp.minimum(high[:, None], high[rows, best][:, :, None]) - xp.maximum(
            low[:, None], low[rows, best][:, :, None]
        )
        common = xp.maximum(sides, scalar(sides, 0)).prod(axis=3)
        whole = sizes[:, None] + sizes[rows, best][:, :, None] - common
        has_area = (sizes[:, None] > 0) & (sizes[rows, best][:, :, None] > 0)
        is_over = (common / whole > scalar(common, share)) & has_area
        is_left &= ~(is_over & takes[:, :, None])
    image, kind, rank = xp.nonzero(is_chosen)
    return xp.stack([image, kind, order[image, kind, rank]], axis=1).astype(np.int64)


def _check(boxes: Array, scores: Array) -> tuple[int, int, int]:
    """Return the numbers of batches, classes and boxes; refuse other shapes."""
    if boxes.ndim == scores.ndim == 3 and boxes.shape[2] == 4:
        batch, classes, n = scores.shape
        if boxes.shape[:2] == (batch, n):
            return batch, classes, n
    got = f"{boxes.shape} and {scores.shape}"
    raise ArgumentError(f"boxes, scores: expected (N, boxes, 4) and (N, classes, boxes), got {got}")


def _corners(xp: Module, boxes: Array, is_by_centre: int) -> tuple[Array, Array]:
    """Return the corners of least and of largest coordinates, two arrays (N, boxes, 2).

    boxes: (N, boxes, 4), two opposite corners, or centre and size.
    """
    first, second = boxes[..., :2], boxes[..., 2:]
    if is_by_centre:
        half = second / scalar(boxes, 2)
        return first - half, first + half
    return xp.minimum(first, second), xp.maximum(first, second)
