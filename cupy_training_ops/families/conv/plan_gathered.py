# SPDX-License-Identifier: MIT
"""Matrix products whose tiles gather elements from arrays as they lie (implicit im2col).

An image, of a convolution or its data gradient, is W times the other image unfolded. The gradient
of W is a long sum over positions, which is split into parts; see cuda_src/conv/weight.cuh.
"""

from __future__ import annotations

import math

import numpy as np

from ...declare.schema import Spec
from ...plan import Config, Device, Launch, Plan, Scratch, ScratchMemory, by_value, ceil_div
from ...rules.widening import computed_in
from .extents import Convolution, Shape
from .facts import AXES, COLUMNS, THREADS, ImageLayout, WeightLayout
from .plan_launches import Wanted, geometry, summers, taps, total
from .plan_variants import Sides, Variant, parts_of_sum, small_variant, stages, weight_kernel

PACKED_NBYTES = 16 * 1024**2  # of W in tiles, at a time
SUMS_NBYTES = 32 * 1024**2  # of sums of parts, at a time

Parts = Scratch | None  # sums of parts; None if that gradient is not wanted


# ---- an image ------------------------------------------------------------------------------------


def image_product(
    device: Device, conv: Convolution, variant: Variant, wanted: Wanted, unspread: Convolution
) -> Plan:
    """Plan a convolution or its data gradient: W is packed in the order of tiles, and multiplied.

    Some tiles of rows at a time, whose W takes at most PACKED_NBYTES. variant: the compilation and
    its tile. wanted: `source`, w and bias are read, `image` is written. unspread: the convolution
    before `spread_residues`, which W belongs to; `conv` itself if nothing was spread.
    """
    product = ImageProduct(conv, variant, is_gradient=wanted.is_gradient)
    tiles = conv.group * product.row_tiles
    at_once = max(1, PACKED_NBYTES // (product.packed_size * wanted.dtype.itemsize))
    scratch, steps = ScratchMemory(), []
    packed = scratch.take(min(tiles, at_once) * product.packed_size, wanted.dtype)
    for first in range(0, tiles, at_once):
        count = min(at_once, tiles - first)
        layout = product.layout(first, count, unspread)
        packing = Config((count * product.packing_blocks,), (THREADS,))
        args = (wanted.w, packed, layout)
        steps.append(Launch(variant.kernel("conv__pack"), packing, args, variant.slots))
        blocks = count * product.column_tiles * math.prod(product.of_axes)
        specs = (wanted.source, packed, wanted.bias, wanted.image)
        steps.append(_product_launch(device, product, specs, layout, blocks))
    return scratch.plan(*steps)


class ImageProduct:
    """The matrix product of an image: rows are channels written, columns are positions (n, p).

    variant                 the compilation of the kernels, with the rows and depth of a tile
    rows, depth             channels of a group that are written, and read (summed)
    extents, read_extents   spatial extents of the images that are written, and read
    of_axes                 a gradient's residues p % stride along each axis; of a convolution 1
    row_tiles               tiles of rows of a group
    column_tiles            tiles of columns of one residue: positions that have the same taps
    parts                   that the depth is divided into; shared memory has one at a time
    packing_blocks          blocks that pack W for a tile, one for each tap and part
    packed_size             elements of W for a tile
    """

    def __init__(
        self, conv: Convolution, variant: Variant, columns: int = COLUMNS, *, is_gradient: bool
    ) -> None:
        """Divide the image of `conv` or of its data gradient into tiles of `columns` positions."""
        self.conv, self.variant, self.is_gradient = conv, variant, is_gradient
        sides = Sides.of(conv, is_gradient)
        self.rows, self.depth, self.extents, self.read_extents, self.of_axes = sides
        self.column_tiles = _column_tiles(conv, self.extents, self.of_axes, columns)
        self.row_tiles = ceil_div(self.rows, variant.rows)
        self.parts = ceil_div(self.depth, variant.depth)
        self.packing_blocks = math.prod(conv.kernel) * self.parts  # of a tile
        self.packed_size = self.packing_blocks * variant.depth * variant.rows

    def layout(self, first: int, count: int, unspread: Convolution) -> np.void:
        """Return the struct ImageLayout of `count` tiles of rows from tile `first` on.

        unspread: the convolution that W belongs to, before residues of strides were made channels.
        """
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
            **_spread_fields(unspread, self.conv),
            is_gradient=self.is_gradient,
        )


def _product_launch(
    device: Device, product: ImageProduct, specs: tuple[object, ...], layout: np.void, blocks: int
) -> Launch:
    """Return the launch of `blocks` blocks that multiplies packed W by an unfolded image.

    conv__image_lines where the variant copies vectors (lines), else conv__image. specs: the image
    that is read, packed W, the bias or None, the image that is written. layout: struct ImageLayout.
    """
    variant = product.variant
    if variant.lines:
        n = stages(device)
        config = Config((blocks,), (THREADS,), variant.stages_nbytes(n, weight=False))
        return Launch("conv__image_lines", config, (*specs, n, layout), variant.slots)
    config, kernel = Config((blocks,), (THREADS,)), variant.kernel("conv__image")
    return Launch(kernel, config, (*specs, layout), variant.slots)


def _spread_fields(conv: Convolution, spread: Convolution) -> dict[str, object]:
    """Return the fields of ImageLayout that say which tap of `conv`'s W a tap of `spread`'s is.

    conv: the convolution that W belongs to. `spread` is `conv`, or the same gradient with a channel
    for each residue of conv's strides: tap j of residue r is then tap r - skipped + j stride of W.
    """
    steps = (1,) * AXES if spread is conv else conv.strides
    axes = zip(steps, conv.pads, spread.pads, strict=True)
    return {
        "of_channel": math.prod(steps),
        "spread": steps,
        "w_kernel": conv.kernel,
        "skipped": tuple(step * spread_pad - pad for step, pad, spread_pad in axes),
    }


def _column_tiles(conv: Convolution, extents: Shape, of_axes: Shape, columns: int) -> int:
    """Return the tiles of `columns` positions, of all images, of residue 0, which has the most."""
    positions = (ceil_div(n, step) for n, step in zip(extents, of_axes, strict=True))
    return ceil_div(conv.batch * math.prod(positions), columns)


def _tap_steps(conv: Convolution) -> Shape:
    """Return, along each axis, the distance from a tap of a residue to the residue's next tap.

    Taps k with the same k * dilation % stride are of one residue: stride 2, dilation 1 give 2.
    """
    pairs = zip(conv.strides, conv.dilations, strict=True)
    return tuple(stride // math.gcd(stride, dilation) for stride, dilation in pairs)


# ---- the gradient of weights ---------------------------------------------------------------------


def weight_sums(device: Device, conv: Convolution, variant: Variant, wanted: Wanted) -> Plan:
    """Plan the gradients of W and of a bias: sums of parts of the positions, then their totals.

    variant: the compilation and its tile. wanted: x and y (dY) are read, dw and db are written, one
    of which may be None. Some tiles at a time, whose sums take at most SUMS_NBYTES. A bias is
    summed in the same parts whether W is wanted or not, which gives the same bits.
    """
    x, y, w, bias = wanted.x, wanted.y, wanted.dw, wanted.db
    product = WeightProduct(device, conv, variant)
    scratch, parts, dtype = ScratchMemory(), product.parts, computed_in(y.dtype)
    y_sums = sums = None
    if bias is not None and parts:
        y_sums = scratch.take(parts * conv.filters, dtype)
    steps = []
    if w is None:
        assert bias is not None
        if parts:
            blocks, layout = product.row_tiles * parts, product.layout(None)
            steps.append(product.sums(blocks, (x, y, None, y_sums), layout))
        return scratch.plan(*steps, total(y_sums, bias, parts, small_variant(y.dtype).slots))
    if parts:
        sums = scratch.take(product.at_once * parts * variant.rows * COLUMNS, dtype)
    for first in range(0, product.tiles, product.at_once):
        tiles = (first, min(product.at_once, product.tiles - first))
        layout = product.layout(tiles)
        if parts:
            steps.append(product.sums(tiles[1] * parts, (x, y, sums, y_sums), layout))
        of_bias = bias if sum(tiles) == product.tiles else None
        steps.append(product.totals(tiles[1], (sums, w, y_sums, of_bias), layout))
    return scratch.plan(*steps)


class WeightProduct:
    """The matrix product of W's gradient: rows are filters, columns are (channel, tap).

    row_tiles, column_tiles   of variant.rows rows, in all groups, and of COLUMNS columns
    tiles                     the product of both
    at_once                   tiles that scratch memory has room for
    positions                 (n, o) that are summed, in `parts` of `span` positions; may be 0

    W has no extent of 0, so that there are tiles.
    """

    def __init__(self, device: Device, conv: Convolution, variant: Variant) -> None:
        """Divide W's gradient into the variant's tiles, and positions into parts, for `device`."""
        self.device, self.conv, self.variant = device, conv, variant
        self.row_tiles = conv.group * ceil_div(conv.group_filters, variant.rows)  # of all groups
        columns = math.prod(conv.kernel) * variant.pad_channels(conv.group_channels)
        self.column_tiles = ceil_div(columns, COLUMNS)
        self.tiles = self.row_tiles * self.column_tiles
        self.positions = conv.batch * math.prod(conv.output)
        tile_nbytes = variant.rows * COLUMNS * computed_in(variant.dtype).itemsize
        self.at_once = min(self.tiles, SUMS_NBYTES // tile_nbytes)
        most = SUMS_NBYTES // (self.at_once * tile_nbytes)
        most = min(most, self.positions // (8 * variant.depth))  # at least 8 stages in each part
        parts = parts_of_sum(device, self.at_once, self.positions, most)
        depths = ceil_div(ceil_div(self.positions, parts), variant.depth)
        self.span = depths * variant.depth  # positions of a part
        self.parts = ceil_div(self.positions, self.span) if self.positions else 0

    def layout(self, tiles: tuple[int, int] | None) -> np.void:
        """Return the struct WeightLayout of tiles (first, count).

        None: of all tiles of rows without columns, for the gradient of a bias alone. step: `depth`
        positions on, as images and steps along each axis.
        """
        conv, (first, count) = self.conv, tiles or (0, self.row_tiles)
        channels = conv.group_channels if tiles else 0
        return by_value(
            WeightLayout,
            **geometry(conv),
            step=_digits(self.variant.depth, conv.output),
            groups=conv.group,
            rows=conv.group_filters,
            channels=channels,
            padded_channels=self.variant.pad_channels(channels),
            row_tiles=self.row_tiles // conv.group,
            column_tiles=self.column_tiles if tiles else 1,
            first_tile=first,
            tiles=count,
            positions=self.positions,
            positions_of_part=self.span,
        )

    def sums(self, blocks: int, arrays: tuple[Spec, Spec, Parts, Parts], layout: np.void) -> Launch:
        """Return the launch of `blocks` blocks that sums each part of W's gradient and of a bias's.

        layout: struct WeightLayout. arrays: X, Y, scratch memory for the parts of W's gradient, and
        for those of the bias's.
        """
        variant, shared_nbytes = self.variant, 0
        args: tuple[object, ...] = (*arrays, layout)
        if variant.lines:
            n = stages(self.device)
            args, shared_nbytes = (*arrays, n, layout), variant.stages_nbytes(n, weight=True)
        config = Config((blocks,), (THREADS,), shared_nbytes)
        symbol = weight_kernel(self.device, self.conv, *arrays[:2], variant.tf32)
        return Launch(variant.kernel(symbol), config, args, variant.slots)

    def totals(
        self, tiles: int, arrays: tuple[Parts, Spec, Parts, Spec | None], layout: np.void
    ) -> Launch:
        """Return the launch that adds up the parts of `tiles` tiles of dW, and those of the bias.

        arrays: parts of W's gradient, that gradient, parts of the bias's, and that one or None.
        layout: struct WeightLayout of the tiles. The last blocks are those for the bias.
        """
        variant, bias = self.variant, arrays[-1]
        n_summers = summers(self.parts)  # threads for each sum
        blocks = tiles * variant.rows * COLUMNS * n_summers // THREADS
        if bias is not None:
            blocks += ceil_div(bias.size * n_summers, THREADS)
        args, config = (*arrays, self.parts, n_summers, layout), Config((blocks,), (THREADS,))
        return Launch(variant.kernel("conv__weight_total"), config, args, variant.slots)


def _digits(n: int, extents: Shape) -> tuple[int, ...]:
    """Return n positions as (images, steps along each axis): n = 17 in (2, 3) is (2, 1, 2)."""
    digits = []
    for extent in reversed(extents):
        n, digit = divmod(n, max(1, extent))
        digits.append(digit)
    return (n, *reversed(digits))
