# SPDX-License-Identifier: MIT
"""Operators that read images between their pixels: grids, regions, deformed convolutions.

xp: numpy or cupy. Other parameters: the operator's inputs in ONNX's order; attributes by name.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...dtypes import FLOAT32, FLOAT64
from ...errors import ArgumentError
from .elementwise import scalar
from .reductions import Axes, product
from .shapes import extents, on_device
from .table import Array, Module, in_float32, standard, wide

PADDING = ("zeros", "border", "reflection")
OLD_MODES = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}
CUBIC = -0.75
FAR = 4  # so many pixels beyond an image, no tap of a place is inside


# ---- pixels --------------------------------------------------------------------------------------


def _taps(xp: Module, s: Array, mode: str) -> list[tuple[Array, Any]]:
    """Return (pixel, weight) of each tap: the pixels around places s that are interpolated.

    s: places along an axis, in pixels; pixel: indices as floats; both have its shape. A weight may
    be the number 1. Cubic weights are those of cubic convolution with a = CUBIC.
    """
    if mode == "nearest":
        return [(xp.rint(s), 1)]
    low = xp.floor(s)
    t = s - low
    if mode == "linear":
        return [(low, 1 - t), (low + 1, t)]
    a = CUBIC
    near = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (t, 1 - t)]
    far = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in (t + 1, 2 - t)]
    weights = [far[0], near[0], near[1], far[1]]
    return [(low + k - 1, weight) for k, weight in enumerate(weights)]


def _bring_near(xp: Module, s: Array, n: int, padding: str, align_corners: bool) -> Array:
    """Move places s along an axis of n pixels to nearby ones of the same value.

    Far outside, padding is all that they read (or the image's last pixel); reflection is periodic.
    So indices fit into integers.
    """
    if padding != "reflection":
        return xp.minimum(xp.maximum(s, scalar(s, -FAR)), scalar(s, n - 1 + FAR))
    period = max(2 * (n - 1), 1) if align_corners else 2 * n
    return s - xp.floor(s / scalar(s, period)) * scalar(s, period)


def _inside(
    xp: Module, pixels: Array, n: int, padding: str, align_corners: bool
) -> tuple[Array, Array]:
    """Return indices from 0 to n - 1 for pixels (floats), and where the image has the pixel.

    The latter is a bool array, or None: everywhere, as padding repeats or reflects pixels.
    """
    index = xp.where(xp.isnan(pixels), scalar(pixels, -1), pixels).astype(np.int64)
    if padding == "zeros":
        return xp.clip(index, 0, n - 1), (index >= 0) & (index < n)
    if padding == "border" or n == 1:
        return xp.clip(index, 0, n - 1), None
    if align_corners:  # 0 1 2 1 0 1 2
        index = index % (2 * n - 2)
        return xp.where(index < n, index, 2 * n - 2 - index), None
    index = index % (2 * n)  # 0 1 2 2 1 0 0
    return xp.where(index < n, index, 2 * n - 1 - index), None


def sample(
    xp: Module,
    x: Array,
    images: Array,
    places: Sequence[Array],
    mode: str = "linear",
    padding: str = "zeros",
    align_corners: bool = False,
    join: Any = operator.add,
) -> Array:
    """Return values (M, P, C) of images x (N, C, ...): of image images[m] at P places.

    places: for each axis of an image an array (M, P), in pixels, 0 at the middle of the first one.
    mode: "nearest", "linear" or "cubic". padding: beyond the image "zeros", "border" or, about its
    outer borders (align_corners: the middles of its outer pixels), "reflection". join: combines the
    weighted pixels around a place; by default adds them.
    """
    shape = x.shape[2:]
    rows = xp.moveaxis(x.reshape(*x.shape[:2], math.prod(shape)), 1, 2)
    near = [
        _bring_near(xp, s, n, padding, align_corners) for s, n in zip(places, shape, strict=True)
    ]
    each_axis = [  # for each axis its taps: (index, is inside or None, weight)
        [
            (*_inside(xp, pixels, n, padding, align_corners), weight)
            for pixels, weight in _taps(xp, s, mode)
        ]
        for s, n in zip(near, shape, strict=True)
    ]
    total = None
    for taps in itertools.product(*each_axis):  # one tap of each axis: a pixel
        index: Any = 0
        weight: Any = 1
        is_inside: Any = None
        for n, (pixels, is_own, share) in zip(shape, taps, strict=True):
            index, weight = index * n + pixels, weight * share
            is_inside = is_own if is_inside is None else is_inside & is_own
        part = rows[images[:, None], index]
        if is_inside is not None:
            part = xp.where(is_inside[..., None], part, part.dtype.type(0))
        if not isinstance(weight, int):
            part = part * weight[..., None].astype(part.real.dtype, copy=False)
        total = part if total is None else join(total, part)
    return total


# ---- grids ---------------------------------------------------------------------------------------


def _grid_sample(
    xp: Module, x: Array, grid: Array, mode: str, padding_mode: str, align_corners: bool
) -> Array:
    """Return the values (N, C, ...) of images x at the places of grid (N, ..., rank), from -1 to 1.

    grid[..., 0] is along the last axis of an image. mode: "linear", "nearest" or "cubic".
    align_corners: -1 and 1 are the middles of the outer pixels, else their outer borders.
    """
    shape, rank = x.shape[2:], x.ndim - 2
    if rank < 1 or grid.ndim != x.ndim or grid.shape[-1] != rank or grid.shape[0] != x.shape[0]:
        expected = f"shape ({x.shape[0]}, {rank} extents, {rank})"
        raise ArgumentError(f"grid: expected {expected}, got {grid.shape}")
    outside = grid.shape[1:-1]
    if 0 in (*x.shape, *outside):
        if 0 in shape:
            raise ArgumentError(f"X: expected pixels, got shape {x.shape}")
        return xp.zeros((*x.shape[:2], *outside), x.dtype)
    exact = FLOAT64 if FLOAT64 in (x.dtype, grid.dtype) else FLOAT32
    flat = grid.reshape(x.shape[0], math.prod(outside), rank).astype(exact)
    places = []
    for axis, n in enumerate(shape):
        share = (flat[..., rank - 1 - axis] + scalar(flat, 1)) / scalar(flat, 2)
        if align_corners:
            places.append(share * scalar(flat, n - 1))
        else:
            places.append(share * scalar(flat, n) - scalar(flat, 0.5))
    is_whole = x.dtype.kind in "iub" and mode != "nearest"
    source = x.astype(FLOAT64) if is_whole else x
    source = wide(source) if mode != "nearest" else source
    images = xp.arange(x.shape[0])
    y = sample(xp, source, images, places, mode, padding_mode, bool(align_corners))
    y = xp.moveaxis(y, 1, 2).reshape(*x.shape[:2], *outside)
    return y.astype(x.dtype, copy=False)


@standard(
    "GridSample", since=16, until=19, only={"mode": tuple(OLD_MODES), "padding_mode": PADDING}
)
def grid_sample_16(
    xp: Module,
    x: Array,
    grid: Array,
    *,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Array:
    """GridSample before opset 20, which named its modes otherwise."""
    return _grid_sample(xp, x, grid, OLD_MODES[mode], padding_mode, align_corners)


@standard(
    "GridSample",
    since=20,
    only={"mode": ("linear", "nearest", "cubic"), "padding_mode": PADDING},
)
def grid_sample(
    xp: Module,
    x: Array,
    grid: Array,
    *,
    mode: str = "linear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Array:
    """Return the values of images x at the places of `grid`, from -1 to 1 (GridSample)."""
    return _grid_sample(xp, x, grid, mode, padding_mode, align_corners)


@standard("AffineGrid", since=20, host=(1,), grows=True)
@in_float32
def affine_grid(xp: Module, theta: Array, size: Any, *, align_corners: bool = False) -> Array:
    """Return theta (x, y, 1) for the middle (x, y) of each pixel, from -1 to 1: (N, H, W, 2).

    theta: (N, 2, 3); size: (N, C, H, W). In three dimensions so with (x, y, z, 1).
    """
    whole = extents(size)
    if len(whole) not in (4, 5):
        raise ArgumentError(f"size: expected 4 or 5 extents, got {len(whole)}")
    batch, shape = whole[0], whole[2:]
    rank = len(shape)
    if theta.shape != (batch, rank, rank + 1):
        expected = f"shape {(batch, rank, rank + 1)}"
        raise ArgumentError(f"theta: expected {expected}, got {theta.shape}")
    lines = []
    for n in shape:
        if align_corners:
            lines.append(np.linspace(-1, 1, n) if n > 1 else np.zeros(n))
        else:
            lines.append((2 * np.arange(n) + 1) / max(n, 1) - 1)
    axes = np.meshgrid(*lines, indexing="ij")[::-1]
    points = np.stack([*axes, np.ones(shape)], axis=-1).reshape(-1, rank + 1)
    places = on_device(xp, points.astype(theta.dtype))
    return product(xp, places, theta.swapaxes(1, 2)).reshape(batch, *shape, rank)


# ---- regions -------------------------------------------------------------------------------------

MODES = {"mode": ("avg", "max")}


@standard("RoiAlign", since=10, until=15, only=MODES)
def roi_align_10(
    xp: Module,
    x: Array,
    rois: Array,
    images: Array,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Array:
    """RoiAlign before opset 16, which moves regions by no half pixel."""
    return roi_align(
        xp,
        x,
        rois,
        images,
        coordinate_transformation_mode="output_half_pixel",
        mode=mode,
        output_height=output_height,
        output_width=output_width,
        sampling_ratio=sampling_ratio,
        spatial_scale=spatial_scale,
    )


SHIFTS = {"coordinate_transformation_mode": ("half_pixel", "output_half_pixel")}


@standard("RoiAlign", since=16, only=MODES | SHIFTS)
def roi_align(
    xp: Module,
    x: Array,
    rois: Array,
    images: Array,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Array:
    """Return the mean of values at a grid of places in each cell of R regions.

    The result is (R, C, output_height, output_width). A cell has sampling_ratio^2 places, or, if
    that is 0, one for each pixel. mode "max": the largest weighted pixel around any of them, as
    ONNX's own cases and ONNX Runtime have it. images: index of each region's image. rois: (R, 4), x
    and y of two corners. spatial_scale: pixels of x for a unit of rois.
    """
    if x.ndim != 4 or rois.ndim != 2 or rois.shape[1] != 4 or images.shape != rois.shape[:1]:
        got = f"{x.shape}, {rois.shape} and {images.shape}"
        raise ArgumentError(f"expected shapes (N, C, H, W), (R, 4) and (R,), got {got}")
    _refuse_other_images(images, x.shape[0], "batch_indices")
    shape = extents((len(rois), x.shape[1], output_height, output_width))
    if sampling_ratio < 0:
        raise ArgumentError(f"sampling_ratio: expected at least 0, got {sampling_ratio}")
    if 0 in (*x.shape, *shape):
        return xp.zeros(shape, x.dtype)
    dtype, x, rois = x.dtype, wide(x), wide(rois)
    is_shifted = coordinate_transformation_mode == "half_pixel"
    corners = rois * scalar(rois, spatial_scale) - scalar(rois, 0.5 if is_shifted else 0)
    lines = []
    for axis, cells in ((1, output_height), (0, output_width)):
        start, length = corners[:, axis], corners[:, axis + 2] - corners[:, axis]
        length = length if is_shifted else xp.maximum(length, scalar(rois, 1))
        lines.append(_roi_line(xp, start, length / scalar(rois, cells), cells, sampling_ratio))
    # A region's places are a grid of ys by xs, each (R, cells * most places of a cell).
    (ys, in_y, n_y), (xs, in_x, n_x) = lines
    grid = (len(rois), ys.shape[1], xs.shape[1])
    places = [xp.broadcast_to(ys[:, :, None], grid), xp.broadcast_to(xs[:, None, :], grid)]
    # Places up to a pixel outside are moved to the border, those farther out have the value 0.
    is_near, flat = xp.ones(grid, bool), []
    for s, n in zip(places, x.shape[2:], strict=True):
        is_near &= (s >= -1) & (s <= n)
        flat.append(
            xp.minimum(xp.maximum(s, scalar(s, 0)), scalar(s, n - 1)).reshape(len(rois), -1)
        )
    join = operator.add if mode == "avg" else xp.maximum
    values = sample(xp, x, images, flat, padding="border", join=join).reshape(*grid, x.shape[1])
    values = xp.where(is_near[..., None], values, scalar(x, 0))
    is_in = (in_y[:, :, None] & in_x[:, None, :])[..., None]
    # (R, rows of cells, places of a cell, columns of cells, places, C), reduced over the places.
    cells_of = (len(rois), output_height, -1, output_width, grid[2] // output_width, x.shape[1])
    counts = (n_y * n_x).reshape(-1, 1, 1, 1)
    if mode == "avg":
        total = xp.where(is_in, values, scalar(x, 0)).reshape(cells_of).sum(axis=(2, 4))
        y = total / xp.maximum(counts, 1).astype(x.dtype)
    else:
        y = xp.where(is_in, values, scalar(x, -np.inf)).reshape(cells_of).max(axis=(2, 4))
        y = xp.where(counts > 0, y, scalar(x, 0))
    return xp.moveaxis(y, 3, 1).astype(dtype, copy=False)


def _refuse_other_images(images: Array, n: int, name: str) -> None:
    """Refuse indices that none of n images has, where they are on the host."""
    if isinstance(images, np.ndarray) and images.size:
        wrong = images[(images < 0) | (images >= n)]
        if wrong.size:
            raise ArgumentError(f"{name}: expected from 0 to {n - 1}, got {int(wrong[0])}")


def _roi_line(
    xp: Module, start: Array, cell: Array, cells: int, ratio: int
) -> tuple[Array, Array, Array]:
    """Return places along an axis, which of them count (both (R, cells most)), and counts (R,).

    start, cell: (R,), where each region begins and how long its cells are, in pixels. A cell has
    `ratio` places, or if that is 0 as many as it is long; `most` is the largest count.
    """
    if ratio > 0:
        counts, most = xp.full(start.shape, ratio, np.int64), ratio
    else:
        counts = xp.maximum(xp.ceil(cell), scalar(cell, 0)).astype(np.int64)
        most = int(counts.max()) if counts.size else 0
    most = max(most, 1)
    k = xp.arange(most)
    share = (k + 0.5) / xp.maximum(counts, 1)[:, None]
    along = xp.arange(cells)[None, :, None] + share[:, None, :]
    places = start[:, None, None] + along.astype(cell.dtype) * cell[:, None, None]
    is_in = xp.broadcast_to((k < counts[:, None])[:, None, :], places.shape)
    shape = (start.shape[0], cells * most)
    return places.reshape(shape), is_in.reshape(shape), counts


# ---- deformed convolutions -----------------------------------------------------------------------


@standard("DeformConv", since=19)
def deform_conv(
    xp: Module,
    x: Array,
    w: Array,
    offset: Array,
    bias: Array = None,
    mask: Array = None,
    *,
    dilations: Axes = None,
    group: int = 1,
    kernel_shape: Axes = None,
    offset_group: int = 1,
    pads: Axes = None,
    strides: Axes = None,
) -> Array:
    """Return a convolution of values at places that are `offset` away from a window's pixels.

    offset: (N, offset groups * taps * rank, output extents), in pixels; taps: elements of a kernel.
    mask: a factor of each value, (N, offset groups * taps, output extents).
    """
    if not x.ndim == w.ndim == offset.ndim >= 3:
        got = f"{x.shape}, {w.shape} and {offset.shape}"
        raise ArgumentError(f"X, W, offset: expected one rank of at least 3, got {got}")
    rank, n, kernel, shape = x.ndim - 2, x.shape[0], w.shape[2:], offset.shape[2:]
    if kernel_shape is not None and tuple(kernel_shape) != kernel:
        raise ArgumentError(f"kernel_shape: expected {kernel}, as W has, got {kernel_shape}")
    _check_groups(x, w, offset, group, offset_group)
    steps, apart = strides or (1,) * rank, dilations or (1,) * rank
    before = (pads or (0,) * 2 * rank)[:rank]
    behind = (pads or (0,) * 2 * rank)[rank:]
    parts = zip(x.shape[2:], kernel, steps, apart, before, behind, strict=True)
    expected = tuple((m + a + b - (k - 1) * d - 1) // s + 1 for m, k, s, d, a, b in parts)
    if shape != expected:
        raise ArgumentError(f"offset: expected extents {expected}, got {shape}")
    size, taps = math.prod(shape), math.prod(kernel)
    for name, array, whole in (
        ("B", bias, (w.shape[0],)),
        ("mask", mask, (n, offset_group * taps, *shape)),
    ):
        if array is not None and array.shape != whole:
            raise ArgumentError(f"{name}: expected shape {whole}, got {array.shape}")
    shifts = wide(offset).reshape(n * offset_group, taps, rank, size)
    places = []  # of each axis: (N offset groups, taps * output pixels)
    for axis in range(rank):
        windows = np.arange(shape[axis]) * steps[axis] - before[axis]
        windows = np.broadcast_to(_along(windows, axis, rank), shape).reshape(1, size)
        inside = np.broadcast_to(_along(np.arange(kernel[axis]) * apart[axis], axis, rank), kernel)
        pixels = on_device(xp, (windows + inside.reshape(taps, 1)).astype(shifts.dtype))
        places.append((pixels + shifts[:, :, axis]).reshape(n * offset_group, taps * size))
    channels = x.shape[1]
    images = wide(x).reshape(n * offset_group, channels // offset_group, *x.shape[2:])
    values = sample(xp, images, xp.arange(n * offset_group), places)
    values = xp.moveaxis(values, 1, 2).reshape(n, offset_group, -1, taps, size)
    if mask is not None:
        values = values * wide(mask).reshape(n, offset_group, 1, taps, size)
    # The convolution as a product of matrices, for each group: filters by im2col's columns.
    columns = values.reshape(n, group, channels // group * taps, size)
    filters = wide(w).reshape(group, w.shape[0] // group, w.shape[1] * taps)
    y = product(xp, xp.broadcast_to(filters, (n, *filters.shape)), columns)
    y = y.reshape(n, w.shape[0], *shape)
    if bias is not None:
        y = y + wide(bias).reshape(-1, *[1] * rank)
    return y.astype(x.dtype, copy=False)


def _along(line: Any, axis: int, rank: int) -> Any:
    """Return a vector as an array of `rank` dimensions, of extent 1 but along an axis."""
    return line.reshape([-1 if i == axis else 1 for i in range(rank)])


def _check_groups(x: Array, w: Array, offset: Array, group: int, offset_group: int) -> None:
    """Refuse groups of channels, or of offsets, whose number does not fit DeformConv's inputs."""
    channels, rank = x.shape[1], x.ndim - 2
    if channels != w.shape[1] * group or w.shape[0] % group:
        raise ArgumentError(f"group: {group} does not fit shapes {x.shape} and {w.shape}")
    n_offsets = offset_group * math.prod(w.shape[2:]) * rank
    if channels % offset_group or offset.shape[:2] != (x.shape[0], n_offsets):
        expected = f"shape ({x.shape[0]}, {n_offsets}, ...) for {offset_group} groups"
        raise ArgumentError(f"offset: expected {expected}, got {offset.shape}")
