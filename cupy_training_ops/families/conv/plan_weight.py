# SPDX-License-Identifier: MIT
"""Launches of the gradient of weights, whose long sum is split; see cuda_src/conv/weight.cuh."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...declare.schema import Spec
from ...plan import Config, Device, Launch, Plan, Scratch, ScratchMemory, by_value, ceil_div
from ...rules.widening import computed_in
from .extents import Convolution, Shape
from .facts import COLUMNS, THREADS, WeightLayout
from .plan_launches import summers, taps, total
from .plan_variants import Variant, parts_of_sum, small_variant, stages, weight_kernel

SUMS_NBYTES = 32 * 1024**2  # of sums of parts, at a time

Arrays = tuple[Spec, Spec, Spec | None, Spec | None]  # X, Y, W and bias, None if not wanted


@dataclass(frozen=True)
class Split:
    """The matrix product in tiles, and its sum in parts."""

    row_tiles: int  # of all groups
    column_tiles: int
    at_once: int  # tiles, for whose sums there is room
    positions: int
    span: int  # positions of a part
    parts: int  # none where there is nothing to sum

    @property
    def tiles(self) -> int:
        """Tiles of all groups."""
        return self.row_tiles * self.column_tiles


def weight_sums(device: Device, conv: Convolution, variant: Variant, arrays: Arrays) -> Plan:
    """The gradient of the weights, and that of a bias.

    A bias is summed in the same parts whether W is wanted or not, which gives the same bits.
    """
    x, y, w, bias = arrays
    split = _split_sum(device, conv, variant, y)
    if w is None:
        return Plan() if bias is None else _bias(device, conv, variant, split, (x, y, bias))
    scratch = ScratchMemory()
    y_sums = sums = None
    if bias is not None and split.parts:
        y_sums = scratch.take(split.parts * conv.filters, computed_in(y.dtype))
    if split.parts:
        elements = split.at_once * split.parts * variant.rows * COLUMNS
        sums = scratch.take(elements, computed_in(y.dtype))
    steps = []
    for first in range(0, split.tiles, split.at_once):
        tiles = (first, min(split.at_once, split.tiles - first))
        layout = _layout(conv, variant, split, tiles)
        if split.parts:
            blocks = tiles[1] * split.parts
            steps.append(_sums(device, conv, variant, blocks, (x, y, sums, y_sums), layout))
        of_bias = bias if sum(tiles) == split.tiles else None
        steps.append(_totals(variant, split.parts, tiles[1], (sums, w, y_sums, of_bias), layout))
    return scratch.plan(*steps)


def _bias(
    device: Device,
    conv: Convolution,
    variant: Variant,
    split: Split,
    arrays: tuple[Spec, Spec, Spec],
) -> Plan:
    """A bias alone, by blocks that have no columns."""
    x, y, bias = arrays
    if not split.parts:
        return Plan((total(None, bias, 0, small_variant(y.dtype).slots),))
    scratch = ScratchMemory()
    y_sums = scratch.take(split.parts * conv.filters, computed_in(y.dtype))
    layout, blocks = _layout(conv, variant, split, None), split.row_tiles * split.parts
    steps = (
        _sums(device, conv, variant, blocks, (x, y, None, y_sums), layout),
        total(y_sums, bias, split.parts, small_variant(y.dtype).slots),
    )
    return scratch.plan(*steps)


def _split_sum(device: Device, conv: Convolution, variant: Variant, y: Spec) -> Split:
    row_tiles = conv.group * ceil_div(conv.group_filters, variant.rows)
    column_tiles = ceil_div(
        math.prod(conv.kernel) * variant.pad_channels(conv.group_channels), COLUMNS
    )
    positions = conv.batch * math.prod(conv.output)
    tile_nbytes = variant.rows * COLUMNS * computed_in(y.dtype).itemsize
    at_once = min(row_tiles * column_tiles, SUMS_NBYTES // tile_nbytes)
    most = min(SUMS_NBYTES // (at_once * tile_nbytes), positions // (8 * variant.depth))
    parts = parts_of_sum(device, at_once, positions, most)
    span = ceil_div(ceil_div(positions, parts), variant.depth) * variant.depth
    parts = ceil_div(positions, span) if positions else 0
    return Split(row_tiles, column_tiles, at_once, positions, span, parts)


def _sums(
    device: Device,
    conv: Convolution,
    variant: Variant,
    blocks: int,
    arrays: tuple[Spec, Spec, Scratch | None, Scratch | None],
    layout: np.void,
) -> Launch:
    """Sums of parts of W, and of Y."""
    args: tuple[object, ...] = (*arrays, layout)
    shared_nbytes = 0
    if variant.lines:
        args = (*arrays, stages(device), layout)
        shared_nbytes = variant.stages_nbytes(stages(device), weight=True)
    config = Config((blocks,), (THREADS,), shared_nbytes)
    symbol = weight_kernel(device, conv, *arrays[:2], variant.tf32)
    return Launch(variant.kernel(symbol), config, args, variant.slots)


def _layout(
    conv: Convolution, variant: Variant, split: Split, tiles: tuple[int, int] | None
) -> np.void:
    """The layout of tiles (the first, how many); or of all tiles of rows, without columns."""
    first, count = tiles or (0, split.row_tiles)
    channels = conv.group_channels if tiles else 0
    return by_value(
        WeightLayout,
        image=conv.image,
        output=conv.output,
        **taps(conv),
        step=_digits(variant.depth, conv.output),
        groups=conv.group,
        rows=conv.group_filters,
        channels=channels,
        padded_channels=variant.pad_channels(channels),
        row_tiles=split.row_tiles // conv.group,
        column_tiles=split.column_tiles if tiles else 1,
        first_tile=first,
        tiles=count,
        positions=split.positions,
        positions_of_part=split.span,
    )


def _totals(
    variant: Variant,
    parts: int,
    tiles: int,
    arrays: tuple[Scratch | None, Spec, Scratch | None, Spec | None],
    layout: np.void,
) -> Launch:
    """W, and a bias if wanted, from their parts; blocks for the bias come last."""
    each, bias = summers(parts), arrays[-1]
    blocks = tiles * variant.rows * COLUMNS * each // THREADS
    if bias is not None:
        blocks += ceil_div(bias.size * each, THREADS)
    args = (*arrays, parts, each, layout)
    config = Config((blocks,), (THREADS,))
    return Launch(variant.kernel("conv__weight_total"), config, args, variant.slots)


def _digits(n: int, extents: Shape) -> tuple[int, ...]:
    """n positions as images and steps along each axis."""
    digits = []
    for extent in reversed(extents):
        n, digit = divmod(n, max(1, extent))
        digits.append(digit)
    return (n, *reversed(digits))
