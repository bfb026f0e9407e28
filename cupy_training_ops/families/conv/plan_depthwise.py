# SPDX-License-Identifier: MIT
"""Launches of convolutions whose groups have one channel, without a matrix product.

Threads walk through strips, STRIP neighbouring positions of a line (a row of the last axis). See
cuda_src/conv/depthwise.cuh; for arrays with channels last, depthwise_lines.cuh and, with 3 x 3
taps, depthwise_walks.cuh.
"""

from __future__ import annotations

import math

import numpy as np

from ...declare.schema import Spec
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
    STRIP,
    TAPS,
    THREADS,
    WIDE_TAPS,
    DepthwiseLayout,
)
from .plan_launches import Wanted, geometry, total
from .plan_variants import MAX_DEPTHWISE_FILTERS, MAX_OFFSET, lines_variant, small_variant

WALKED_ROWS = 14  # rows of a strip that a thread walks down
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

    walked: the extents whose strips threads go through. Channels first, a thread has a strip of
    what is written; channels last, a block has a tile of channels of a part of the strips
    (conv__depthwise_lines), or of walks, strips of several rows.
    """
    read, written, is_gradient = wanted.source, wanted.target, wanted.is_gradient
    arrays = (read, wanted.w, wanted.bias, written)
    walked = conv.image if is_gradient else conv.output
    if not read.channels_last:
        symbol = "conv__depthwise_gradient" if is_gradient else "conv__depthwise"
        blocks = ceil_div(math.prod(written.shape[:2]) * math.prod(_strips(walked)), THREADS)
        args = (*arrays, _layout(conv, walked, (read, written)))
        slots = small_variant(read.dtype).slots
        return Plan((Launch(symbol, Config((blocks,), (THREADS,)), args, slots),))
    symbol, how = "conv__depthwise_lines", tuple[int, ...]()
    width = VEC_NBYTES // read.dtype.itemsize
    if _can_walk(conv):
        symbol, how, width = "conv__depthwise_walks", (WALKED_ROWS,), LINE_SUMS
        walked = _walks(walked)
    tiles, strips = _line_tiles(conv, width)
    parts, of_block = _parts(device, conv, walked, tiles, strips)
    config = Config((parts * tiles,), (THREADS,))
    layout = _layout(conv, walked, (read, written))
    line_args = (*arrays, of_block, *how, is_gradient, layout)
    slots = lines_variant(read.dtype, sums=False).slots
    return Plan((Launch(symbol, config, line_args, slots),))


def _can_walk(conv: Convolution) -> bool:
    """Return True if threads walk down rows, of which each is read once for all taps."""
    is_plane = conv.image[0] == conv.output[0] == 1 and conv.pads[0] == 0
    is_dense = set(conv.strides) == {1} and conv.dilations[1:] == (1, 1)
    return is_plane and is_dense and conv.kernel == (1, TAPS, TAPS)


def _walks(extents: Shape) -> Shape:
    """Return the extents with walks, WALKED_ROWS rows that a thread walks down, for rows."""
    return (extents[0], ceil_div(extents[1], WALKED_ROWS), extents[2])


def depthwise_weight(device: Device, conv: Convolution, wanted: Wanted) -> Plan:
    """Plan the gradients of W and of a bias: sums over parts of the strips, then their totals.

    wanted: x and y (dY) are read, dw and db are written, of which one may be None. at_once: taps
    along an axis that a block sums; `tiles` such tiles of taps make the kernel. A part has `blocks`
    blocks. A bias has the same parts, and bits, without W.
    """
    x, y, w, bias = wanted.x, wanted.y, wanted.dw, wanted.db
    at_once = WIDE_TAPS if not y.channels_last and _has_wide_tiles(conv, y) else TAPS
    tiles = math.prod(ceil_div(k, at_once) for k in conv.kernel[1:]) * conv.kernel[0]
    of_part: tuple[int, ...]
    if y.channels_last:
        walks, slots = _can_walk(conv), lines_variant(y.dtype, sums=True).slots
        symbol = "conv__depthwise_walks_weight" if walks else "conv__depthwise_lines_weight"
        walked = _walks(conv.output) if walks else conv.output
        line_tiles, strips = _line_tiles(conv, LINE_SUMS)
        blocks = tiles * line_tiles  # of a part
        parts, n_strips = _parts(device, conv, walked, blocks, strips)
        of_part = (n_strips, WALKED_ROWS) if walks else (n_strips,)
    else:
        symbol, slots = "conv__depthwise_weight", small_variant(y.dtype).slots
        if at_once == WIDE_TAPS:
            symbol = "conv__depthwise_weight_wide"
        walked, blocks = conv.output, tiles * conv.filters
        parts = min(ceil_div(BLOCKS_WANTED * device.multiprocessors, blocks), conv.batch)
        of_part = (parts,)
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
        layout = _layout(conv, walked, (x, y))
        args = (None if w is None else x, y, *sums, *of_part, layout)
        steps.insert(0, Launch(symbol, Config((parts * blocks,), (THREADS,)), args, slots))
    return scratch.plan(*steps)


def _line_tiles(conv: Convolution, width: int) -> tuple[int, int]:
    """Return (tiles of LINE_VECTORS vectors of `width` channels, strips of a block at a time)."""
    vectors = conv.group // width
    return ceil_div(vectors, LINE_VECTORS), THREADS // min(vectors, LINE_VECTORS)


def _parts(
    device: Device, conv: Convolution, walked: Shape, blocks: int, strips: int
) -> tuple[int, int]:
    """Divide the strips of all images into parts: return (number of parts, strips of a part).

    walked: extents of an image that is divided into strips. blocks: of each part. strips: those of
    a block at a time, which a part has at least.
    """
    n_strips = conv.batch * math.prod(_strips(walked))
    most_parts = ceil_div(BLOCKS_WANTED * device.multiprocessors, blocks)
    strips_of_part = ceil_div(n_strips, min(most_parts, ceil_div(n_strips, strips)))
    return ceil_div(n_strips, strips_of_part), strips_of_part


def _layout(conv: Convolution, walked: Shape, arrays: tuple[Spec, Spec]) -> np.void:
    """Return the struct DepthwiseLayout.

    walked: the extents whose strips threads go through: `strips` of a line, `lines` of a slice,
    strips `of_plane` in all, as divisors. arrays: read and written; their alignment counts.
    """
    strips = _strips(walked)
    return by_value(
        DepthwiseLayout,
        **geometry(conv),
        batch=conv.batch,
        groups=conv.group,
        filters=conv.group_filters,
        strips=divisor(max(1, strips[2])),
        lines=divisor(max(1, strips[1])),
        of_plane=divisor(max(1, math.prod(strips))),
        in_vectors=_in_vectors(conv, arrays),
    )


def _has_wide_tiles(conv: Convolution, array: Spec) -> bool:
    """Return True if a block sums WIDE_TAPS x WIDE_TAPS taps of W's gradient, not TAPS x TAPS."""
    is_dense = conv.strides[2] == conv.dilations[2] == 1
    return is_dense and array.dtype.itemsize <= 4 and max(conv.kernel[1:]) > TAPS


def _in_vectors(conv: Convolution, arrays: tuple[Spec, Spec]) -> bool:
    """Return True if taps are 3 x 3 around a position and strips can be loaded as vectors."""
    around = ((1, 3, 3), (1, 1, 1), (0, 1, 1))
    same = conv.image == conv.output and conv.image[0] == 1
    has_neighbours = same and (conv.kernel, conv.strides, conv.pads) == around
    is_dense = conv.dilations[1:] == (1, 1) and conv.image[2] % STRIP == 0
    return has_neighbours and is_dense and all(array.aligned for array in arrays)


def _strips(extents: Shape) -> Shape:
    """Return how many strips a channel has along each axis: STRIP positions along the last one."""
    return (*extents[:2], ceil_div(extents[2], STRIP))
