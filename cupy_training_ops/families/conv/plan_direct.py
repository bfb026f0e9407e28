# SPDX-License-Identifier: MIT
"""Gradients of a 2-D convolution whose X has few channels, from a Y with its channels last.

A block copies what a tile of positions reads to shared memory once, for all taps. A run is the
stride * channels elements of X at `stride` neighbouring columns: at most 8, one vector of a
product. See cuda_src/conv/direct.cuh.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ...declare.schema import Spec
from ...dtypes import FLOAT32, Dtype
from ...plan import (
    VEC_NBYTES,
    Config,
    Device,
    Launch,
    Plan,
    Scratch,
    ScratchMemory,
    by_value,
    ceil_div,
)
from .extents import Convolution, Shape
from .facts import (
    DIRECT_COLUMNS,
    DIRECT_DEPTH,
    DIRECT_HALO,
    DIRECT_POSITIONS,
    DIRECT_ROWS,
    DIRECT_RUN,
    DIRECT_THREADS,
    DIRECT_WIDTH,
    LINE_NBYTES,
    PANEL,
    STAGED_BLOCKS,
    STAGED_THREADS,
    THREADS,
    DirectLayout,
    StagedArray,
    StagingLayout,
)
from .plan_launches import Wanted, copies_of, summers, total
from .plan_model import OTHER_SHARED_NBYTES
from .plan_staged import neighbours
from .plan_variants import MAX_OFFSET, TENSOR_CORES, direct_variant, staged_variant, window

FILTERS = 16  # filters are a multiple of it, and at most PANEL


def goes_direct(device: Device, conv: Convolution, y: Spec, tf32: int) -> bool:
    """Return True if the direct kernels compute the gradients of X and W from this y (dY).

    tf32: 1, float32 may be rounded to TF32, without which (0, 3) no direct kernel takes float32.
    """
    run = conv.strides[2] * conv.channels
    fits = run <= DIRECT_RUN and run * conv.strides[1] <= DIRECT_ROWS and conv.group == 1
    fits = fits and conv.filters % FILTERS == 0 and conv.filters <= PANEL
    divides = all(i % s == 0 for i, s in zip(conv.image, conv.strides, strict=True))
    return (
        device.capability >= TENSOR_CORES
        and (y.dtype.itemsize == 2 or (tf32 == 1 and y.dtype == FLOAT32))
        and y.channels_last
        and y.aligned
        and fits
        and divides
        and conv.kernel[0] == conv.image[0] == conv.output[0] == 1
        and (conv.strides[0], conv.pads[0], set(conv.dilations)) == (1, 0, {1})
        and min(conv.batch, *conv.image, *conv.output) > 0
        and max(conv.batch, conv.channels) * math.prod(conv.image) <= MAX_OFFSET
        and conv.batch * math.prod(conv.output) <= MAX_OFFSET
        and math.prod(_halo(conv)) <= DIRECT_HALO
        and max(image_nbytes(conv, y.dtype), sums_nbytes(y.dtype)) + OTHER_SHARED_NBYTES
        <= device.max_shared_nbytes
    )


def direct_plan(device: Device, conv: Convolution, wanted: Wanted, tf32: int) -> Plan | None:
    """Plan the gradients that `wanted` has from dY, or from a copy with channels last (`_staging`).

    None if direct kernels take neither. tf32: products of TF32 for each of float32: 1, 3, or 0.
    """
    y = wanted.y
    if goes_direct(device, conv, y, tf32):
        return _gradients(device, conv, wanted)
    lies_so = replace(y, channels_last=True, aligned=True)
    if y.channels_last or not goes_direct(device, conv, lies_so, tf32):
        return None
    copies = copies_of(y.dtype)
    copy, piece = copies.copy(y, last=True)
    copies.before.append(_staging(device, conv, y, piece))
    return copies.plan(_gradients(device, conv, replace(wanted, y=copy)))


def _gradients(device: Device, conv: Convolution, wanted: Wanted) -> Plan:
    """Plan the gradient of X, and those of W and of a bias, where they are wanted."""
    if wanted.image is None:
        return _weight(device, conv, wanted)
    image = _image(device, conv, wanted)
    return image.then(_weight(device, conv, wanted)) if wanted.sums else image


def _image(device: Device, conv: Convolution, wanted: Wanted) -> Plan:
    """Plan the gradient of X, plus a bias for each channel if there is one, by conv__direct_image.

    wanted: y (dY), w and bias are read, `target` (dX) is written. As many blocks as run at a time
    go over the tiles of positions.
    """
    y, w, x = wanted.y, wanted.w, wanted.target
    layout = _layout(conv, x, w, conv.image, conv.strides, DIRECT_POSITIONS)
    blocks = min(_count(layout), STAGED_BLOCKS * device.multiprocessors)
    config = Config((blocks,), (DIRECT_THREADS,), image_nbytes(conv, y.dtype))
    args = (y, w, wanted.bias, x, layout)
    return Plan((Launch("conv__direct_image", config, args, direct_variant(y.dtype).slots),))


def _weight(device: Device, conv: Convolution, wanted: Wanted) -> Plan:
    """Plan the gradients of W and of a bias: sums of parts of Y's tiles, then their totals.

    wanted: x and y (dY) are read, dw and db are written, of which one may be None. A part is every
    parts-th tile of positions. The bias has the same bits without W.
    """
    x, y, w, bias = wanted.x, wanted.y, wanted.dw, wanted.db
    slots = direct_variant(y.dtype).slots
    layout = _layout(conv, x, w, conv.output, (1,) * 3, DIRECT_DEPTH)
    column_tiles = ceil_div(conv.kernel[1] * int(layout["window"][1]) * DIRECT_RUN, DIRECT_COLUMNS)
    parts = ceil_div(STAGED_BLOCKS * device.multiprocessors, column_tiles)
    parts = min(parts, _count(layout))
    scratch = ScratchMemory()
    sums = y_sums = None
    if w is not None:
        sums = scratch.take(parts * column_tiles * PANEL * DIRECT_COLUMNS, FLOAT32)
    if bias is not None:
        y_sums = scratch.take(parts * conv.filters, FLOAT32)
    columns = column_tiles if w is not None else 1
    config = Config((parts * columns,), (STAGED_THREADS,), sums_nbytes(y.dtype))
    summed = Launch("conv__direct_weight", config, (x, y, sums, y_sums, columns, layout), slots)
    if w is None:
        assert bias is not None
        return scratch.plan(summed, total(y_sums, bias, parts, slots))
    each = summers(parts)
    of_weights = column_tiles * PANEL * DIRECT_COLUMNS * each // THREADS
    more = 0 if bias is None else ceil_div(bias.size * each, THREADS)
    summands = (sums, w, y_sums, bias, parts, each, column_tiles, of_weights, layout)
    config = Config((of_weights + more,), (THREADS,))
    return scratch.plan(summed, Launch("conv__direct_total", config, summands, slots))


def _staging(device: Device, conv: Convolution, y: Spec, to: Scratch) -> Launch:
    """Return the launch of conv__stage that writes Y (n, channel, position) to `to` channels last.

    A block takes PANEL positions of an image; X and W, which the kernel also stages, are absent.
    """
    plane, width = math.prod(conv.output), VEC_NBYTES // y.dtype.itemsize
    tiles = ceil_div(plane, PANEL)
    array = by_value(
        StagedArray,
        channels=conv.filters,
        padded=conv.filters,
        plane=plane,
        width=neighbours(plane, width, y),
        plane_tiles=tiles,
        blocks=conv.batch * tiles,
    )
    layout = np.zeros((), StagingLayout.of().dtype)
    layout["y"] = array
    config = Config((conv.batch * tiles,), (THREADS,))
    args = (None, None, y, to, None, None, None, None, None, layout[()])
    return Launch("conv__stage", config, args, staged_variant(device, y.dtype, PANEL).slots)


def image_nbytes(conv: Convolution, dtype: Dtype) -> int:
    """Return conv__direct_image's shared memory: W, and the halo of Y that a tile reads, in bytes.

    Of Y a line of LINE_NBYTES bytes of filters for each position, of W one for each tap and row.
    """
    (_, rows, columns), _ = window(conv)
    height, width = DIRECT_POSITIONS // DIRECT_WIDTH + rows - 1, DIRECT_WIDTH + columns - 1
    return (_panels(dtype) * rows * columns * DIRECT_ROWS + height * width) * LINE_NBYTES


def sums_nbytes(dtype: Dtype) -> int:
    """Return conv__direct_weight's shared memory in bytes: two stages of Y's lines and X's runs."""
    of_y = _panels(dtype) * DIRECT_DEPTH * LINE_NBYTES
    return 2 * (of_y + DIRECT_HALO * DIRECT_RUN * dtype.itemsize)


def _panels(dtype: Dtype) -> int:
    """Return how many lines of LINE_NBYTES bytes PANEL filters of a position take."""
    return PANEL * dtype.itemsize // LINE_NBYTES


def _halo(conv: Convolution) -> tuple[int, int]:
    """Return (rows of X, runs along a row) that DIRECT_DEPTH positions of Y read."""
    rows = (DIRECT_DEPTH // DIRECT_WIDTH - 1) * conv.strides[1] + conv.kernel[1]
    return rows, DIRECT_WIDTH + window(conv)[0][2] - 1


def _layout(
    conv: Convolution, x: Spec, w: Spec | None, extents: Shape, steps: Shape, positions: int
) -> np.void:
    """Return the struct DirectLayout, along the last two axes.

    x: X or its gradient. w: W or its gradient, None if it is not wanted; both for their layout.
    Tiles of `positions` positions, DIRECT_WIDTH across, cover every steps-th place of `extents`.
    window: the taps by which a run of X is read; the first is tap -skipped of W. of_column,
    of_channel: elements of X from a column, and a channel, to the next. in_pairs: runs begin at
    even elements of an aligned X.
    """
    kernel, pads = window(conv)
    tile = (positions // DIRECT_WIDTH, DIRECT_WIDTH)
    walked = (ceil_div(n, s) for n, s in zip(extents[1:], steps[1:], strict=True))
    is_last = x.channels_last
    each = zip(pads[1:], conv.strides[1:], conv.pads[1:], strict=True)
    return by_value(
        DirectLayout,
        image=conv.image[1:],
        output=conv.output[1:],
        kernel=conv.kernel[1:],
        stride=conv.strides[1:],
        pad=conv.pads[1:],
        window=kernel[1:],
        window_pad=pads[1:],
        skipped=tuple(step * pad - p for pad, step, p in each),
        tiles=tuple(ceil_div(n, t) for n, t in zip(walked, tile, strict=True)),
        batch=conv.batch,
        channels=conv.channels,
        filters=conv.filters,
        of_column=conv.channels if is_last else 1,
        of_channel=1 if is_last else math.prod(conv.image),
        w_channels_last=w is not None and w.channels_last,
        in_pairs=x.aligned and conv.strides[2] * (conv.channels if is_last else 1) % 2 == 0,
    )


def _count(layout: np.void) -> int:
    """Return the number of tiles of positions in all images."""
    return int(layout["batch"]) * int(np.prod(layout["tiles"], dtype=np.int64))
