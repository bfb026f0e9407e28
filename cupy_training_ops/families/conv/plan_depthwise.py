# SPDX-License-Identifier: MIT
"""Launches of convolutions whose groups have one channel, without a matrix product.

Threads go through strips, STRIP neighbouring positions of a line (a row of the last axis). See
cuda_src/conv/depthwise.cuh; for arrays with channels last depthwise_lines.cuh; for both with 3 x 3
or 5 x 5 taps, stride and dilation 1, depthwise_walks.cuh.
"""

from __future__ import annotations

import math

import numpy as np

from ...declare.schema import Spec
from ...dtypes import Dtype
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
from ...planning.fast_division import divisor
from ...rules.widening import computed_in
from .extents import Convolution, Shape
from .facts import (
    BLOCKS,
    LINE_SUMS,
    LINE_TAPS,
    LINE_VECTORS,
    NARROW_STRIP,
    STRIP,
    TAPS,
    THREADS,
    WALK_CHANNELS,
    WIDE_TAPS,
    DepthwiseLayout,
)
from .plan_launches import Wanted, geometry, total
from .plan_variants import MAX_DEPTHWISE_FILTERS, MAX_OFFSET, lines_variant, small_variant

# Walks, of a channel each, that a multiprocessor should have: images with at most half as many are
# divided into bands of rows, of LEAST_ROWS at least.
WALKS_WANTED = {TAPS: 2048, WIDE_TAPS: 1024}
# The same of 3 x 3 taps of a plane, whose bands share lines of the cache.
PLANE_WALKS_WANTED = 6144
LEAST_ROWS = 4
LEAST_LINE_ROWS = 14  # the same with channels last, if there are a quarter of the walks wanted
BLOCKS_WANTED = 4 * BLOCKS  # for each multiprocessor, so that all have some until the end


def is_depthwise(conv: Convolution) -> bool:
    """Return True if depthwise kernels compute it: one channel and at most 4 filters a group."""
    is_single = conv.group_channels == 1 and conv.group_filters <= MAX_DEPTHWISE_FILTERS
    return is_single and max(math.prod(conv.image), math.prod(conv.output)) <= MAX_OFFSET


def goes_by_lines(conv: Convolution, *arrays: Spec | None) -> bool:
    """Return True if depthwise kernels read and write these arrays with their channels last."""
    specs = [spec for spec in arrays if spec is not None]
    itemsize = specs[0].dtype.itemsize
    return (
        is_depthwise(conv)
        and conv.group_filters == 1
        and itemsize <= 4
        and conv.group % (VEC_NBYTES // itemsize) == 0
        and 0 < math.prod(conv.kernel) <= LINE_TAPS
        and min(conv.batch, *conv.image, *conv.output) > 0
        and all(spec.channels_last and spec.aligned for spec in specs)
    )


def depthwise(device: Device, conv: Convolution, wanted: Wanted) -> Plan:
    """Plan a convolution or its data gradient: `wanted.target` from `wanted.source`, w and bias.

    Channels first, a thread has a strip of what is written (conv__depthwise...), or a walk, a strip
    of several rows. Channels last, a block has a tile of channels of a part of the strips, or of
    the walks.
    """
    read, written, is_gradient = wanted.source, wanted.target, wanted.is_gradient
    arrays = (read, wanted.w, wanted.bias, written)
    extents = conv.image if is_gradient else conv.output
    walked = _walked_taps(conv, read.dtype)
    if is_gradient and conv.group_filters > 1:
        walked = 0  # several channels are read for one
    strips, how = _strips(extents), tuple[int, ...]()
    if walked:
        wanted_walks = WALKS_WANTED[walked]
        if walked == TAPS and not read.channels_last:
            wanted_walks = PLANE_WALKS_WANTED
        strips, how = _walks(device, conv, extents, walked, wanted_walks, last=read.channels_last)
    layout = _layout(conv, strips)
    if not read.channels_last:
        blocks = ceil_div(math.prod(written.shape[:2]) * math.prod(strips), THREADS)
        symbol = "conv__depthwise_planes" if walked else "conv__depthwise"
        args = (*arrays, *how, is_gradient, layout)
        slots = small_variant(read.dtype, walked or TAPS).slots
        return Plan((Launch(symbol, Config((blocks,), (THREADS,)), args, slots),))
    symbol, width = "conv__depthwise_lines", VEC_NBYTES // read.dtype.itemsize
    if walked:
        symbol, width = "conv__depthwise_walks", WALK_CHANNELS
    tiles, at_once = _line_tiles(conv, width)
    parts, of_block = _parts(device, conv, strips, tiles, at_once)
    config = Config((parts * tiles,), (THREADS,))
    args = (*arrays, of_block, *how, is_gradient, layout)
    slots = lines_variant(read.dtype, walked or TAPS, sums=False).slots
    return Plan((Launch(symbol, config, args, slots),))


def _walked_taps(conv: Convolution, dtype: Dtype) -> int:
    """Return the taps along each axis, if threads walk down rows and read each once for all taps.

    Else 0. They do with TAPS x TAPS, or WIDE_TAPS x WIDE_TAPS of at most 4 bytes, side by side.
    """
    is_plane = conv.image[0] == conv.output[0] == 1 and conv.pads[0] == 0
    is_dense = set(conv.strides) == {1} and conv.dilations[1:] == (1, 1)
    taps = conv.kernel[2]
    is_known = taps == TAPS or (taps == WIDE_TAPS and dtype.itemsize <= 4)
    return taps if is_plane and is_dense and is_known and conv.kernel == (1, taps, taps) else 0


def _walks(
    device: Device, conv: Convolution, extents: Shape, taps: int, wanted: int, *, last: bool
) -> tuple[Shape, tuple[int]]:
    """Return how many walks an image's channel has along each axis, and (the rows of a walk,).

    wanted: walks of a channel for each multiprocessor; all rows are walked at once where there are
    more than half of them. last: channels are last.
    """
    columns = ceil_div(extents[2], NARROW_STRIP if last and taps == WIDE_TAPS else STRIP)
    walks, wanted = max(1, conv.batch * conv.filters * columns), wanted * device.multiprocessors
    least = LEAST_LINE_ROWS if last and 4 * walks >= wanted else LEAST_ROWS
    rows = max(least, ceil_div(extents[1], max(1, wanted // walks)))
    return (extents[0], ceil_div(extents[1], rows), columns), (rows,)


def depthwise_weight(device: Device, conv: Convolution, wanted: Wanted) -> Plan:
    """Plan the gradients of W and of a bias: sums over parts of the strips, then their totals.

    wanted: x and y (dY) are read, dw and db are written, of which one may be None. A block sums
    `taps` taps along an axis, a part has `blocks` blocks. A bias has the same parts, and bits,
    without W.
    """
    x, y, w, bias = wanted.x, wanted.y, wanted.dw, wanted.db
    walked, strips, how = _walked_taps(conv, y.dtype), _strips(conv.output), tuple[int, ...]()
    taps = walked or (WIDE_TAPS if _has_wide_tiles(conv, y) else TAPS)
    if walked:
        last = y.channels_last
        strips, how = _walks(device, conv, conv.output, taps, WALKS_WANTED[taps], last=last)
    blocks = math.prod(ceil_div(k, taps) for k in conv.kernel[1:]) * conv.kernel[0]
    if y.channels_last:
        slots = lines_variant(y.dtype, taps, sums=True).slots
        symbol, width = "conv__depthwise_lines_weight", LINE_SUMS
        if walked:
            symbol, width = "conv__depthwise_walks_weight", WALK_CHANNELS
        tiles, at_once = _line_tiles(conv, width)
        blocks *= tiles
        parts, n_strips = _parts(device, conv, strips, blocks, at_once)
        of_part: tuple[int, ...] = (n_strips, *how)
    else:
        slots, symbol = small_variant(y.dtype, taps).slots, "conv__depthwise_weight"
        blocks *= conv.filters
        parts = min(ceil_div(BLOCKS_WANTED * device.multiprocessors, blocks), conv.batch)
        of_part = (parts,)
        if walked:
            symbol = "conv__depthwise_planes_weight"
            parts, n_strips = _parts(device, conv, strips, blocks, THREADS)
            of_part = (n_strips, *how)
    parts = parts if math.prod(conv.output) else 0
    scratch, steps = ScratchMemory(), list[Launch]()
    sums: list[Scratch | None] = []
    for spec in (w, bias):
        if spec is None:
            sums.append(None)
            continue
        sums.append(scratch.take(parts * spec.size, computed_in(spec.dtype)) if parts else None)
        steps.append(total(sums[-1], spec, parts, slots))
    if parts:
        args = (None if w is None else x, y, *sums, *of_part, _layout(conv, strips))
        steps.insert(0, Launch(symbol, Config((parts * blocks,), (THREADS,)), args, slots))
    return scratch.plan(*steps)


def _line_tiles(conv: Convolution, width: int) -> tuple[int, int]:
    """Return (tiles of LINE_VECTORS vectors of `width` channels, strips of a block at a time)."""
    vectors = conv.group // width
    return ceil_div(vectors, LINE_VECTORS), THREADS // min(vectors, LINE_VECTORS)


def _parts(
    device: Device, conv: Convolution, strips: Shape, blocks: int, at_once: int
) -> tuple[int, int]:
    """Divide the strips of all images into parts: return (number of parts, strips of a part).

    strips: of an image's channel, along each axis. blocks: of each part. at_once: strips of a block
    at a time, which a part has at least.
    """
    n_strips = conv.batch * math.prod(strips)
    most_parts = ceil_div(BLOCKS_WANTED * device.multiprocessors, blocks)
    parts = max(1, min(most_parts, ceil_div(n_strips, at_once)))
    strips_of_part = max(1, ceil_div(n_strips, parts))
    return ceil_div(n_strips, strips_of_part), strips_of_part


def _layout(conv: Convolution, strips: Shape) -> np.void:
    """Return the struct DepthwiseLayout.

    strips: that threads go through, of an image's channel along each axis. The divisors: `strips`
    of a line, `lines` of a slice, strips `of_plane` in all.
    """
    return by_value(
        DepthwiseLayout,
        **geometry(conv),
        batch=conv.batch,
        groups=conv.group,
        filters=conv.group_filters,
        strips=divisor(max(1, strips[2])),
        lines=divisor(max(1, strips[1])),
        of_plane=divisor(max(1, math.prod(strips))),
    )


def _has_wide_tiles(conv: Convolution, array: Spec) -> bool:
    """Return True if a block sums WIDE_TAPS x WIDE_TAPS taps of W's gradient, not TAPS x TAPS."""
    is_dense = conv.strides[2] == conv.dilations[2] == 1 and not array.channels_last
    return is_dense and array.dtype.itemsize <= 4 and max(conv.kernel[1:]) > TAPS


def _strips(extents: Shape) -> Shape:
    """Return how many strips a channel has along each axis: STRIP positions along the last one."""
    return (*extents[:2], ceil_div(extents[2], STRIP))
