# SPDX-License-Identifier: MIT
"""Tiles of convolutions over staged arrays, chosen by an estimate of time; and when staging pays.

Staged arrays: see plan_staged.py. Times are in stages: a tall tile's product with one part of its
sum, LINE_NBYTES bytes of each row and column in shared memory.

In all functions `conv` is the ordinary convolution whose result or gradients are computed, tf32 the
number of products of TF32 for each of float32: 1, 3, or 0 (exact), and `wanted` has the call's
arrays and says which results are computed (`Wanted`).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from ...dtypes import FLOAT32, Dtype
from ...plan import SCRATCH_ALIGNMENT, VEC_NBYTES, Device, align_up, ceil_div
from .extents import Convolution
from .facts import (
    FLAT_COLUMNS,
    FLAT_GROUPS_BLOCKS,
    FLAT_GROUPS_COLUMNS,
    FLAT_GROUPS_STAGES,
    FLAT_GROUPS_THREADS,
    LINE_NBYTES,
    PANEL,
    SPLIT_COLUMNS,
    STAGED_BLOCKS,
    STAGED_STAGES,
    STAGED_TAPS,
    STAGED_THREADS,
    TALL_COLUMNS,
    TALL_GROUPS_BLOCKS,
    TALL_GROUPS_COLUMNS,
    TALL_GROUPS_STAGES,
    TALL_GROUPS_THREADS,
    StagedRow,
)
from .plan_launches import Wanted
from .plan_variants import (
    TENSOR_CORES,
    Sides,
    choices,
    image_has_lines,
    is_single,
    multiply_by_warpgroups,
    weight_kernel,
)

OTHER_SHARED_NBYTES = 5 * 1024  # of a block's shared memory, at most, beside the stages
MOST_NBYTES, MOST_SHARE = 64 * 1024**2, 2.5  # scratch memory: in bytes, and as a multiple of X + Y
MOST_W_NBYTES = 16 * 1024**2
MOST_SUMS_NBYTES = 32 * 1024**2  # of the parts of W's gradient
MOST_VECTORS = 2**31 - 1  # of 16 bytes in a staged array, which kernels count in 32 bits
LEAST_PRODUCTS = 128  # of an element staged for a 1 x 1: on an H200 51 are too few, 205 enough
LEAST_DEPTH = 16  # channels of a group, of which fewer would be mostly padding


@dataclass(frozen=True)
class Tile:
    """A block's tile of the product; its rows are the key in OF_WARPS, OF_WARPGROUPS, OF_PARTS."""

    columns: int  # of the tile
    threads: int  # of the block
    blocks: int  # that run on a multiprocessor at a time
    stages: int  # buffers in shared memory, each for a part of the sum
    step_cost: float  # time of a stage


_STAGED = (STAGED_THREADS, STAGED_BLOCKS, STAGED_STAGES)
_TALL_GROUPS = (TALL_GROUPS_THREADS, TALL_GROUPS_BLOCKS, TALL_GROUPS_STAGES)
_FLAT_GROUPS = (FLAT_GROUPS_THREADS, FLAT_GROUPS_BLOCKS, FLAT_GROUPS_STAGES)
# By their rows. Tiles that warps multiply, that warpgroups do, and those of three TF32 products.
OF_WARPS = {
    2 * PANEL: Tile(TALL_COLUMNS, *_STAGED, step_cost=1.0),
    PANEL: Tile(FLAT_COLUMNS, *_STAGED, step_cost=0.9),
}
OF_WARPGROUPS = {
    2 * PANEL: Tile(TALL_GROUPS_COLUMNS, *_TALL_GROUPS, step_cost=1.0),
    PANEL: Tile(FLAT_GROUPS_COLUMNS, *_FLAT_GROUPS, step_cost=0.9),
}
OF_PARTS = {PANEL: Tile(SPLIT_COLUMNS, *_STAGED, step_cost=1.5)}
BLOCK_COST = 3.0  # time of a block beside its stages
SUM_COST = 0.03  # time of adding up one part of a tile


def tiles_of(device: Device, dtype: Dtype, tf32: int) -> dict[int, Tile]:
    """Return the tiles over staged arrays of this type, by their rows.

    tf32: products of TF32 for each of float32: 1 or 3, or 0, exact.
    """
    if tf32 == 3 and dtype == FLOAT32:
        return OF_PARTS
    return OF_WARPGROUPS if multiply_by_warpgroups(device, dtype, tf32) else OF_WARPS


def can_stage(device: Device, conv: Convolution, dtype: Dtype, tf32: int) -> bool:
    """Return True if conv__staged computes this convolution: on tensor cores, without tf32 exactly.

    It does in 2-byte types and float32, from 8.0 on, with LEAST_DEPTH channels and filters of a
    group (joined or not) or more, and at most STAGED_TAPS taps, if memory has room for the copies.
    """
    conv = join_groups(conv, dtype)
    width = VEC_NBYTES // dtype.itemsize
    channels = (conv.group_channels, conv.group_filters)
    fits = conv.group == 1 or all(n % width == 0 for n in channels)
    sizes = (math.prod(conv.x_shape), math.prod(conv.y_shape))
    return (
        device.capability >= TENSOR_CORES
        and (dtype.itemsize == 2 or dtype == FLOAT32)
        and fits
        and min(channels) >= LEAST_DEPTH
        and 1 <= math.prod(conv.kernel) <= STAGED_TAPS
        and min(sizes) > 0
        and max(sizes) // width * 2 <= MOST_VECTORS
        and math.prod(conv.w_shape) * dtype.itemsize <= MOST_W_NBYTES
        and bool(tile_choices(device, dtype, tf32))
        and _has_room(device, conv, dtype, tf32)
    )


def join_groups(conv: Convolution, dtype: Dtype) -> Convolution:
    """Return `conv` with small groups joined, several to one, to fill a tile.

    Large groups, those of one filter, and channels that are no multiple of 4 stay. W then has zeros
    where a filter and a channel are of two groups.
    """
    channels, filters = conv.group_channels, conv.group_filters
    if min(channels, filters) >= LEAST_DEPTH or channels % 4 != 0 or filters == 1:
        return conv
    width = VEC_NBYTES // dtype.itemsize
    fitting = (
        n
        for n in range(2, PANEL // max(channels, filters) + 1)
        if conv.group % n == 0 and not (n * channels % width or n * filters % width)
    )
    return replace(conv, group=conv.group // max(fitting, default=1))


def staged_image(device: Device, conv: Convolution, wanted: Wanted, tf32: int) -> bool:
    """Return True if staging pays for an image, `wanted.target` from `wanted.source`."""
    lines = image_has_lines(device, conv, wanted.source, wanted.target, tf32)
    return _staging_pays(device, conv, wanted, tf32, lines=lines)


def staged_weight(device: Device, conv: Convolution, wanted: Wanted, tf32: int) -> bool:
    """Return True if staging pays for the gradients of W and a bias, from wanted.x and wanted.y."""
    lines = weight_kernel(device, conv, wanted.x, wanted.y, tf32) == "conv__weight_lines"
    return _staging_pays(device, conv, wanted, tf32, lines=lines)


def _staging_pays(
    device: Device, conv: Convolution, wanted: Wanted, tf32: int, *, lines: bool
) -> bool:
    """Return True if staging saves time and is possible; wanted: the call's arrays, `Wanted`.

    tf32: products of TF32 for each of float32: 1, 3, or 0 (exact). lines: without staging, tensor
    cores would multiply vectors of both arrays as they lie.
    """
    without_tensor_cores = wanted.dtype == FLOAT32 and not tf32 and is_single(conv)
    pays = _multiplies_often(conv) or not (lines or without_tensor_cores)
    return (pays or wanted.has_channels_last) and can_stage(device, conv, wanted.dtype, tf32)


def _multiplies_often(conv: Convolution) -> bool:
    """Return True if each element that is staged has so many products that staging saves time."""
    channels, filters = conv.group_channels, conv.group_filters
    return channels * filters >= LEAST_PRODUCTS * (channels + filters)


def _has_room(device: Device, conv: Convolution, dtype: Dtype, tf32: int) -> bool:
    """Return True if scratch memory is at most 64 MiB, or at most 2.5 times X and Y.

    Counted are staged X, Y and W, sums of parts of W's gradient and of tiles of Y, and a StagedRow
    for each position; not the lines of Y that warpgroups multiply in TF32.
    """
    width = VEC_NBYTES // dtype.itemsize
    positions = conv.batch * math.prod(conv.output)
    staged_x = conv.batch * math.prod(conv.image) * align_up(conv.channels, width)
    staged_y = positions * align_up(conv.filters, width)
    padded = align_up(conv.group_channels, width) * align_up(conv.group_filters, width)
    of_w = conv.group * padded * math.prod(conv.kernel)
    tiles = weight_tiles(device, conv, dtype, tf32)
    columns = tiles_of(device, dtype, tf32)[tiles.rows].columns
    sums = tiles.parts * (tiles.count * tiles.rows * columns + conv.filters)
    sums += conv.batch * ceil_div(math.prod(conv.output), PANEL) * conv.filters
    nbytes = (staged_x + staged_y + of_w) * dtype.itemsize + 4 * sums
    nbytes += (positions + PANEL) * StagedRow.of().dtype.itemsize + 8 * SCRATCH_ALIGNMENT
    arrays = (math.prod(conv.x_shape) + math.prod(conv.y_shape)) * dtype.itemsize
    return nbytes <= max(MOST_NBYTES, MOST_SHARE * arrays)


# ---- tiles --------------------------------------------------------------------------------------


def tile_choices(device: Device, dtype: Dtype, tf32: int) -> list[int]:
    """Return the rows of tiles that there are kernels for and whose stages fit shared memory."""
    return [
        rows
        for rows in tiles_of(device, dtype, tf32)
        if tile_nbytes(device, rows, dtype, tf32) + OTHER_SHARED_NBYTES <= device.max_shared_nbytes
        and rows in choices(device, dtype)
    ]


def tile_nbytes(device: Device, rows: int, dtype: Dtype, tf32: int) -> int:
    """Return a block's shared memory in bytes: of its stages, or of the image's tile after them."""
    tile = tiles_of(device, dtype, tf32)[rows]
    written = rows * (tile.columns * dtype.itemsize + VEC_NBYTES)
    return max(tile.stages * (rows + tile.columns) * LINE_NBYTES, written)


@dataclass(frozen=True)
class Blocks:
    """Blocks that take equally long."""

    count: int
    cost: float  # time of one, in stages


def image_blocks(
    tile: Tile, conv: Convolution, dtype: Dtype, rows: int, *, is_gradient: bool
) -> Blocks:
    """Return the blocks of a convolution or its data gradient (is_gradient), one for each `tile`.

    rows: of a tile. Residues of strides, which have different numbers of taps, count as alike.
    """
    sides = Sides.of(conv, is_gradient)
    n_residues = math.prod(sides.residues)
    columns = ceil_div(conv.batch * math.prod(sides.written), n_residues * tile.columns)
    steps = math.prod(conv.kernel) * sides.depth / n_residues * dtype.itemsize / LINE_NBYTES
    count = conv.group * n_residues * ceil_div(sides.rows, rows) * columns
    return Blocks(count, steps * tile.step_cost + BLOCK_COST)


def image_rows(
    device: Device, conv: Convolution, dtype: Dtype, tf32: int, *, is_gradient: bool
) -> int:
    """Return the rows of tiles with which all blocks of an image take least time.

    The image is a convolution's, or with is_gradient its data gradient.
    """
    tiles = tiles_of(device, dtype, tf32)

    def cost(rows: int) -> float:
        blocks = image_blocks(tiles[rows], conv, dtype, rows, is_gradient=is_gradient)
        return time_of(slots_of(device, tiles[rows]), [blocks])

    return min(tile_choices(device, dtype, tf32), key=cost)


@dataclass(frozen=True)
class WeightTiles:
    """Tiles of W's gradient: rows are filters of a group, columns are (tap, channel)."""

    rows: int  # of a tile
    row_tiles: int  # of a group
    column_tiles: int
    count: int  # tiles of all groups
    parts: int  # that the sum over positions of each tile is divided into


@functools.lru_cache(maxsize=1024)
def weight_tiles(device: Device, conv: Convolution, dtype: Dtype, tf32: int) -> WeightTiles:
    """Return the tiles of W's gradient that take least time with X's gradient beside it.

    A call without X's gradient has these tiles, too: other tiles would divide the sums into other
    parts, and so give W's gradient other bits.
    """
    choices_of = tile_choices(device, dtype, tf32)
    pairs = (tiles_and_cost(device, conv, dtype, rows, tf32) for rows in choices_of)
    return min(pairs, key=lambda pair: pair[1])[0]


def tiles_and_cost(
    device: Device, conv: Convolution, dtype: Dtype, rows: int, tf32: int
) -> tuple[WeightTiles, float]:
    """Return tiles of W's gradient of `rows` rows, divided into the fastest parts, and their time.

    The time, in stages, is that of a launch which also computes X's gradient, with such tiles.
    """
    padded = align_up(conv.group_channels, VEC_NBYTES // dtype.itemsize)
    row_tiles = ceil_div(conv.group_filters, rows)
    tile = tiles_of(device, dtype, tf32)[rows]
    column_tiles = ceil_div(math.prod(conv.kernel) * padded, tile.columns)
    tiles = conv.group * row_tiles * column_tiles
    steps = ceil_div(conv.batch * math.prod(conv.output), LINE_NBYTES // dtype.itemsize)
    image = image_blocks(tile, conv, dtype, rows, is_gradient=True)
    slots = slots_of(device, tile)  # blocks that run at a time

    def cost(parts: int) -> float:
        weights = Blocks(tiles * parts, ceil_div(steps, parts) * tile.step_cost + BLOCK_COST)
        return time_of(slots, [image, weights]) + SUM_COST * tiles * parts

    most = MOST_SUMS_NBYTES // (tiles * rows * tile.columns * 4)
    useful = ceil_div(2 * slots, tiles)
    parts = min(range(1, max(1, min(most, steps, useful)) + 1), key=cost)
    return WeightTiles(rows, row_tiles, column_tiles, tiles, parts), cost(parts)


def slots_of(device: Device, tile: Tile) -> int:
    """Return how many blocks of this tile run on the device at a time."""
    return tile.blocks * device.multiprocessors


def time_of(slots: int, blocks: list[Blocks]) -> float:
    """Return the time until all blocks are done, of one or two kinds, `slots` at a time.

    The kind whose blocks take longer begins. Then each slot that is free takes the next block.
    """
    long, *rest = sorted(blocks, key=lambda kind: -kind.cost)
    rounds, more = divmod(long.count, slots)
    # (number of slots, time at which they have done their long blocks)
    ends = [(slots - more, rounds * long.cost), (more, (rounds + 1) * long.cost)]
    end = max(end for n, end in ends if n)
    for kind in rest:
        # All slots would end at `level` if blocks could be divided. Each takes as many whole ones
        # as end by then; what is left goes to the slots that end first, one more each.
        level = (sum(n * at for n, at in ends) + kind.count * kind.cost) / slots
        counts = [max(0, math.floor((level - at) / kind.cost)) for _, at in ends]
        left = kind.count - sum(n * t for (n, _), t in zip(ends, counts, strict=True))
        tops = sorted((at + t * kind.cost, n) for (n, at), t in zip(ends, counts, strict=True))
        end = max(end, *(at for at, n in tops if n))
        for at, n in tops:
            if left > 0 and n:
                end = max(end, at + kind.cost)
                left -= n
    return end
