# SPDX-License-Identifier: MIT
"""Launches of a convolution or its data gradient, as a product of W and tiles of an image."""

from __future__ import annotations

import math

import numpy as np

from ...declare.schema import Spec
from ...plan import Config, Device, Launch, Plan, ScratchMemory, by_value, ceil_div
from .extents import Convolution, Shape
from .facts import AXES, COLUMNS, THREADS, ImageLayout
from .plan_launches import taps
from .plan_variants import Variant, residues, stages

PACKED_NBYTES = 16 * 1024**2  # of W in tiles, at a time

Arrays = tuple[Spec, Spec, Spec | None, Spec]  # read, W, bias, written


def image_product(
    device: Device,
    conv: Convolution,
    variant: Variant,
    arrays: Arrays,
    *,
    is_gradient: bool,
    of: Convolution,
) -> Plan:
    """W is packed, and multiplied, some tiles of rows at a time; `of` is conv before its spread."""
    _, w, _, _ = arrays
    product = ImageProduct(conv, variant, is_gradient=is_gradient)
    tiles = conv.group * product.row_tiles
    at_once = max(1, PACKED_NBYTES // (product.packed_size * w.dtype.itemsize))
    scratch, steps = ScratchMemory(), []
    packed = scratch.take(min(tiles, at_once) * product.packed_size, w.dtype)
    for first in range(0, tiles, at_once):
        count = min(at_once, tiles - first)
        layout = product.layout(first, count, of)
        packs = Config((count * product.packing_blocks,), (THREADS,))
        steps.append(
            Launch(variant.kernel("conv__pack"), packs, (w, packed, layout), variant.slots)
        )
        blocks = count * product.column_tiles * math.prod(product.of_axes)
        steps.append(_product_launch(device, product, arrays, packed, layout, blocks))
    return scratch.plan(*steps)


class ImageProduct:
    """Rows of W's tiles by columns of the image's; of a gradient, by residues of the strides."""

    def __init__(
        self, conv: Convolution, variant: Variant, columns: int = COLUMNS, *, is_gradient: bool
    ) -> None:
        self.conv, self.variant, self.is_gradient = conv, variant, is_gradient
        self.extents, self.read_extents = conv.output, conv.image
        self.rows, self.depth = conv.group_filters, conv.group_channels
        if is_gradient:
            self.extents, self.read_extents = self.read_extents, self.extents
            self.rows, self.depth = self.depth, self.rows
        self.of_axes = residues(conv) if is_gradient else (1,) * AXES
        self.column_tiles = _column_tiles(conv, self.extents, self.of_axes, columns)
        self.row_tiles = ceil_div(self.rows, variant.rows)
        self.parts = ceil_div(self.depth, variant.depth)
        self.packing_blocks = math.prod(conv.kernel) * self.parts  # of a tile
        self.packed_size = self.packing_blocks * variant.depth * variant.rows

    def layout(self, first: int, count: int, of: Convolution) -> np.void:
        """The layout of `count` tiles of rows from the first on."""
        return by_value(
            ImageLayout,
            written=self.extents,
            read=self.read_extents,
            **taps(self.conv),
            residues=self.of_axes,
            tap_steps=_tap_steps(self.conv) if self.is_gradient else self.of_axes,
            batch=self.conv.batch,
            groups=self.conv.group,
            rows=self.rows,
            depth=self.depth,
            parts=self.parts,
            row_tiles=self.row_tiles,
            first_tile=first,
            tiles=count,
            **_spread_fields(of, self.conv),
            is_gradient=self.is_gradient,
        )


def _product_launch(
    device: Device,
    product: ImageProduct,
    arrays: Arrays,
    packed: object,
    layout: np.void,
    blocks: int,
) -> Launch:
    """The launch that multiplies, with staged lines where the image has some."""
    (read, _, bias, written), variant = arrays, product.variant
    specs = (read, packed, bias, written)
    if variant.lines:
        n = stages(device)
        config = Config((blocks,), (THREADS,), variant.stages_nbytes(n, weight=False))
        return Launch("conv__image_lines", config, (*specs, n, layout), variant.slots)
    args = (*specs, product.column_tiles, layout)
    return Launch(variant.kernel("conv__image"), Config((blocks,), (THREADS,)), args, variant.slots)


def _spread_fields(conv: Convolution, spread: Convolution) -> dict[str, object]:
    """Fields of a layout that say how residues of `conv` are channels of `spread`."""
    steps = (1,) * AXES if spread is conv else conv.strides
    skipped = (0,) * AXES
    if spread is not conv:
        each = zip(steps, conv.pads, spread.pads, strict=True)
        skipped = tuple(step * pad - p for step, p, pad in each)
    return {
        "of_channel": math.prod(steps),
        "spread": steps,
        "w_kernel": conv.kernel,
        "skipped": skipped,
    }


def _column_tiles(conv: Convolution, extents: Shape, of_axes: Shape, columns: int) -> int:
    """Tiles of the first residue, which has the most positions."""
    positions = (ceil_div(n, residues) for n, residues in zip(extents, of_axes, strict=True))
    return ceil_div(conv.batch * math.prod(positions), columns)


def _tap_steps(conv: Convolution) -> Shape:
    """Taps of the kernel from one that a residue of the stride has to its next."""
    pairs = zip(conv.strides, conv.dilations, strict=True)
    return tuple(stride // math.gcd(stride, dilation) for stride, dilation in pairs)
