# SPDX-License-Identifier: MIT
"""Operators over windows and regions: norms of windows, inverses of pooling, maxima of regions.

xp: numpy or cupy. Other parameters: the operator's inputs in ONNX's order; attributes by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import ArgumentError
from ...families.pooling.windows import windows_of
from .elementwise import scalar
from .reductions import Axes
from .shapes import extents
from .table import Array, Module, in_float32, standard, wide

MOST_REGIONS = 16  # whose images are copied at once
AUTO_PADS = {"auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")}


@standard("LpPool", since=2, only=AUTO_PADS)
@in_float32
def lp_pool(
    xp: Module,
    x: Array,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: bool = False,
    dilations: Axes = None,
    p: int = 2,
    pads: Axes = None,
    strides: Axes = None,
) -> Array:
    """Return (sum |x|^p)^(1/p) of each window."""
    windows = windows_of(
        "LpPool",
        x.shape,
        tuple(kernel_shape),
        _tuple(strides),
        _tuple(dilations),
        _tuple(pads),
        auto_pad,
        bool(ceil_mode),
    )
    powers = _power(xp, x, p)
    total = xp.zeros(windows.y_shape, x.dtype)
    for at, elements in windows.taps():
        total[at] += powers[elements]
    return _root(xp, total, p)


def _tuple(numbers: Axes) -> tuple[int, ...] | None:
    return None if numbers is None else tuple(numbers)


def _power(xp: Module, x: Array, p: int) -> Array:
    """Return |x|^p."""
    if p < 1:
        raise ArgumentError(f"p: expected at least 1, got {p}")
    return x * x if p == 2 else xp.abs(x) ** scalar(x, p)


def _root(xp: Module, total: Array, p: int) -> Array:
    """Return total^(1/p)."""
    return xp.sqrt(total) if p == 2 else total ** scalar(total, 1 / p)


@standard("GlobalLpPool", since=2)
@in_float32
def global_lp_pool(xp: Module, x: Array, *, p: int = 2) -> Array:
    return _root(xp, _power(xp, x, p).sum(axis=tuple(range(2, x.ndim)), keepdims=True), p)


@standard("LRN")
@in_float32
def lrn(
    xp: Module,
    x: Array,
    *,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    bias: float = 1.0,
) -> Array:
    """Return x / (bias + alpha / size * sum of squares of `size` neighbouring channels)^beta."""
    if size < 1:
        raise ArgumentError(f"size: expected at least 1, got {size}")
    n, squares, total = x.shape[1], x * x, xp.zeros_like(x)
    for k in range(-((size - 1) // 2), size // 2 + 1):
        total[:, max(-k, 0) : n - max(k, 0)] += squares[:, max(k, 0) : n - max(-k, 0)]
    return x / (total * scalar(x, alpha / size) + scalar(x, bias)) ** scalar(x, beta)


# ---- back from windows ---------------------------------------------------------------------------


@standard("MaxUnpool", since=9, host=(2,), grows=True)
def max_unpool(
    xp: Module,
    x: Array,
    indices: Array,
    shape: Any = None,
    *,
    kernel_shape: Sequence[int],
    pads: Axes = None,
    strides: Axes = None,
) -> Array:
    """Return zeros with each element of x at its index in the pooled array, flattened.

    shape: of the result, if it is larger than the pooled array, which is at its beginning then.
    """
    rank = len(kernel_shape)
    if x.ndim != rank + 2 or indices.shape != x.shape:
        expected = f"X and I of one shape, with {rank + 2} dimensions"
        raise ArgumentError(f"expected {expected}, got {x.shape} and {indices.shape}")
    steps, ends = strides or (1,) * rank, pads or (0,) * 2 * rank
    parts = zip(x.shape[2:], kernel_shape, steps, ends[:rank], ends[rank:], strict=True)
    source = extents((*x.shape[:2], *((n - 1) * s - a - b + k for n, k, s, a, b in parts)))
    if isinstance(indices, np.ndarray) and indices.size:
        wrong = indices[(indices < 0) | (indices >= math.prod(source))]
        if wrong.size:
            most = math.prod(source) - 1
            raise ArgumentError(f"I: expected from 0 to {most}, got {int(wrong.flat[0])}")
    flat = xp.zeros(math.prod(source), x.dtype)
    flat[indices.reshape(-1)] = x.reshape(-1)
    if shape is None:
        return flat.reshape(source)
    whole = extents(shape)
    if len(whole) != len(source) or any(n < m for n, m in zip(whole, source, strict=True)):
        raise ArgumentError(f"output_shape: expected at least {source}, got {whole}")
    y = xp.zeros(whole, x.dtype)
    y[tuple(slice(0, n) for n in source)] = flat.reshape(source)
    return y


@standard("Col2Im", since=18, host=(1, 2), grows=True)
@in_float32
def col2im(
    xp: Module,
    x: Array,
    image: Any,
    block: Any,
    *,
    dilations: Axes = None,
    pads: Axes = None,
    strides: Axes = None,
) -> Array:
    """Return images (N, C, ...) in which overlapping blocks are added: the reverse of im2col.

    x: (N, C * elements of a block, blocks). image, block: their extents, vectors.
    """
    shape, kernel = extents(image), extents(block)
    if x.ndim != 3 or len(shape) != len(kernel) or x.shape[1] % math.prod(kernel):
        got = f"{x.shape}, {shape} and {kernel}"
        raise ArgumentError(f"expected (N, C blocks, L) and extents of one rank, got {got}")
    channels = x.shape[1] // math.prod(kernel)
    windows = windows_of(
        "Col2Im",
        (x.shape[0], channels, *shape),
        kernel,
        _tuple(strides),
        _tuple(dilations),
        _tuple(pads),
        "NOTSET",
        False,
    )
    if x.shape[2] != math.prod(windows.output):
        expected = f"{math.prod(windows.output)} blocks"
        raise ArgumentError(f"input: expected {expected}, got {x.shape[2]}")
    parts = x.reshape(x.shape[0], channels, math.prod(kernel), *windows.output)
    y = xp.zeros((x.shape[0], channels, *shape), x.dtype)
    for k, (at, elements) in enumerate(windows.taps()):  # element k of all blocks: where in y
        y[elements] += parts[:, :, k][at]
    return y


# ---- regions -------------------------------------------------------------------------------------


@standard("MaxRoiPool")
def max_roi_pool(
    xp: Module,
    x: Array,
    rois: Array,
    *,
    pooled_shape: Sequence[int],
    spatial_scale: float = 1.0,
) -> Array:
    """Return the maximum of each cell of R regions, (R, C, *pooled_shape); 0 without pixels.

    rois: (R, 5), image index, and x and y of the first and the last pixel, before spatial_scale.
    """
    if x.ndim != 4 or rois.ndim != 2 or rois.shape[1] != 5 or len(pooled_shape) != 2:
        got = f"{x.shape}, {rois.shape} and {tuple(pooled_shape)}"
        raise ArgumentError(f"expected (N, C, H, W), (R, 5) and two extents, got {got}")
    shape = extents((len(rois), x.shape[1], *pooled_shape))
    if 0 in (*x.shape, *shape):
        return xp.zeros(shape, x.dtype)
    images = rois[:, 0].astype(np.int64)
    corners = xp.floor(
        wide(rois)[:, 1:] * scalar(wide(rois), spatial_scale) + scalar(wide(rois), 0.5)
    )
    low = scalar(x, -np.inf)
    parts = []
    for first in range(0, len(rois), MOST_REGIONS):
        some = slice(first, first + MOST_REGIONS)
        lines = [  # which rows, and which columns, of pixels are in which cell
            _cells(xp, corners[some, axis], corners[some, axis + 2], cells, n)
            for axis, cells, n in (
                (1, pooled_shape[0], x.shape[2]),
                (0, pooled_shape[1], x.shape[3]),
            )
        ]
        pixels = x[images[some]]
        rows = [  # the maximum over the rows of each row of cells: (regions, C, W)
            xp.where(lines[0][:, i, None, :, None], pixels, low).max(axis=2)
            for i in range(pooled_shape[0])
        ]
        cells_of = [  # then over the columns of each cell: (regions, C, columns of cells)
            xp.stack(
                [
                    xp.where(lines[1][:, j, None, :], row, low).max(axis=2)
                    for j in range(pooled_shape[1])
                ],
                axis=-1,
            )
            for row in rows
        ]
        y = xp.stack(cells_of, axis=2)
        has_any = lines[0].any(axis=2)[:, :, None] & lines[1].any(axis=2)[:, None, :]
        parts.append(xp.where(has_any[:, None], y, scalar(x, 0)))
    return xp.concatenate(parts)


def _cells(xp: Module, start: Array, end: Array, cells: int, n: int) -> Array:
    """Return (R, cells, n): True where a pixel of an axis of n is in a cell.

    start, end: (R,), the first and last pixel of each region, which is divided into equal cells.
    """
    size = xp.maximum(end - start + 1, scalar(start, 1)) / scalar(start, cells)
    k = xp.arange(cells).astype(start.dtype)
    first = xp.floor(k * size[:, None]) + start[:, None]
    behind = xp.ceil((k + 1) * size[:, None]) + start[:, None]
    pixels = xp.arange(n)
    return (pixels >= first[..., None]) & (pixels < behind[..., None])
