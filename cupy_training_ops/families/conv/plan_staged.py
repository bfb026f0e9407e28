# SPDX-License-Identifier: MIT
"""Launches over arrays whose channels lie side by side; see cuda_src/conv/staged_tile.cuh."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ...declare.facts import Struct
from ...declare.schema import Spec
from ...dtypes import FLOAT32, Dtype
from ...plan import (
    VEC_NBYTES,
    Config,
    Device,
    Launch,
    Plan,
    ScratchMemory,
    align_up,
    by_value,
    ceil_div,
)
from .extents import Convolution
from .facts import (
    LINE_NBYTES,
    PANEL,
    THREADS,
    TOTAL_CHANNELS,
    TOTAL_LINES,
    ImageLayout,
    StagedImage,
    WeightLayout,
)
from .plan_bias import bias_gradient
from .plan_image import ImageProduct
from .plan_launches import launch, summers, taps, total
from .plan_model import image_rows, joined, tile_nbytes, tiling, weight_tiles
from .plan_staging import Staging, Wanted, neighbours
from .plan_variants import BIAS_ITEMSIZE, Variant, staged_variant

TOTALS = 4  # blocks of a multiprocessor that add parts up
SUMMING_COLUMNS = 4  # tiles of columns, at most, beside which floats are summed


# ---- launches -----------------------------------------------------------------------------------


def staged(device: Device, conv: Convolution, dtype: Dtype, tf32: bool, wanted: Wanted) -> Plan:
    """One launch that stages what others read, each array once."""
    of_bias, y = wanted.db, wanted.y
    if of_bias is not None and y is not None and not _sums_y(device, conv, y, tf32):
        rest = replace(wanted, db=None)
        rows = tile_rows(device, joined(conv, dtype), dtype, wanted)
        slots = staged_variant(device, dtype, rows, tf32=tf32).slots
        bias = bias_gradient(device, y, of_bias, slots)
        has_more = rest.sums or rest.image is not None
        return staged(device, conv, dtype, tf32, rest).then(bias) if has_more else bias
    scratch = ScratchMemory()
    of, conv = conv, joined(conv, dtype)
    rounds = tf32 and dtype == FLOAT32
    image = sums = None
    rows = tile_rows(device, conv, dtype, wanted)
    variant = staged_variant(device, dtype, rows, tf32=rounds)
    staging = Staging(conv, variant, scratch, wanted, of)
    if wanted.sums:
        sums = _Sums(device, conv, variant, wanted, scratch, of)
    if wanted.image is not None:
        image = _Image(device, conv, variant, wanted)
    steps = [*staging.launches(variant.slots), _product(device, variant, image, sums, staging)]
    if sums is not None:
        steps.append(sums.totals(staging))
    return scratch.plan(*steps)


def _sums_y(device: Device, conv: Convolution, y: Spec, tf32: bool) -> bool:
    """Whether tiles sum Y too: in TF32 they do where it is read as it lies, not rounded before, and
    where those of the first columns, which do, are not few that all others wait for."""
    if y.dtype.itemsize == BIAS_ITEMSIZE:
        return True
    lies = y.aligned and conv.filters % (VEC_NBYTES // y.dtype.itemsize) == 0
    if not (tf32 and lies and (y.channels_last or math.prod(conv.output) == 1)):
        return False
    return weight_tiles(device, joined(conv, y.dtype), y.dtype).column_tiles <= SUMMING_COLUMNS


def tile_rows(device: Device, conv: Convolution, dtype: Dtype, wanted: Wanted) -> int:
    """Rows of tiles. Those of sums, whose parts depend on them, do not depend on what else there
    is: an image beside them has the same, since each of its sums is in one block."""
    if wanted.sums:
        return weight_tiles(device, conv, dtype).rows
    return image_rows(device, conv, dtype, is_gradient=wanted.is_gradient)


def _product(
    device: Device, variant: Variant, image: _Image | None, sums: _Sums | None, staging: Staging
) -> Launch:
    """Blocks that take long come first."""
    *summed, of_weights = sums.args(staging) if sums else (*[None] * 5, _blank(WeightLayout))
    no_image = (*[None] * 4, 1, _blank(StagedImage), _blank(ImageLayout))
    *written, layout = image.args(staging) if image else no_image
    images, weights = (product.blocks if product else 0 for product in (image, sums))
    is_first = image is not None and sums is not None and image.steps > sums.steps
    threads = tiling(device, variant.dtype).tiles[variant.rows].threads
    shared = tile_nbytes(device, variant.rows, variant.dtype)
    summed[0] = summed[0] or summed[1]  # of X addresses are computed, also where nobody reads it
    config = Config((images + weights,), (threads,), shared)
    args = (*summed, images if is_first else 0, weights, *written, of_weights, layout)
    return launch("staged", config, args, variant.slots)


def _blank(struct: Struct) -> np.void:
    """For blocks that there are none of."""
    blank: np.void = np.zeros((), struct.of().dtype)[()]  # type: ignore[assignment]
    return blank


class _Image:
    """A convolution or its data gradient."""

    def __init__(self, device: Device, conv: Convolution, variant: Variant, wanted: Wanted) -> None:
        self.conv, self.variant, self.wanted = conv, variant, wanted
        columns = tiling(device, variant.dtype).tiles[variant.rows].columns
        self.product = ImageProduct(conv, variant, columns, is_gradient=wanted.is_gradient)
        self.residues = math.prod(self.product.of_axes)
        self.tiles = conv.group * self.product.row_tiles
        self.blocks = self.tiles * self.product.column_tiles * self.residues
        self.steps = math.prod(conv.kernel) * self.product.depth // self.residues // PANEL

    def args(self, staging: Staging) -> tuple[object, ...]:
        """Of its kernel; the last is the layout."""
        product, wanted = self.product, self.wanted
        read = staging.at["y" if wanted.is_gradient else "x"]
        given = (read, staging.at["w"], wanted.bias, wanted.image)
        layout = product.layout(0, self.tiles, self.conv)
        how = self._staged(staging)
        return (*given, product.column_tiles, how, layout)

    def _staged(self, staging: Staging) -> np.void:
        """How it is written, and where W is."""
        product, image, w = self.product, self.wanted.image, self.wanted.w
        width = staging.width
        assert image is not None
        assert w is not None
        together = 1
        if image.channels_last:
            together = width if image.aligned and image.shape[1] % width == 0 else 1
        elif self.residues == 1:
            together = neighbours(math.prod(product.extents), width, image)
        depth, of_kernel = ceil_div(product.depth, width), math.prod(self.conv.kernel)
        w_row, w_tap = of_kernel * depth, depth
        if staging.w_as_it_lies:
            w_tap = product.rows // width
            w_row = of_kernel * w_tap
        elif self.wanted.is_gradient and w.channels_last and staging.n_joined == 1:
            w_row, w_tap = depth, product.rows * depth
        return by_value(
            StagedImage,
            width=together,
            w_row=w_row,
            w_tap=w_tap,
            as_it_lies=staging.w_as_it_lies,
            channels_last=image.channels_last,
        )


class _Sums:
    """The gradients of W and of a bias."""

    def __init__(
        self,
        device: Device,
        conv: Convolution,
        variant: Variant,
        wanted: Wanted,
        scratch: ScratchMemory,
        of: Convolution,
    ) -> None:
        self.device, self.conv, self.variant, self.wanted = device, conv, variant, wanted
        self.of = of  # whose groups are joined
        self.columns = tiling(device, variant.dtype).tiles[variant.rows].columns
        found = weight_tiles(device, conv, variant.dtype)
        self.row_tiles = found.row_tiles
        self.column_tiles = found.column_tiles if wanted.dw is not None else 1
        self.tiles = conv.group * self.row_tiles * self.column_tiles
        self.positions = conv.batch * math.prod(conv.output)
        depth = LINE_NBYTES // variant.dtype.itemsize
        self.span = ceil_div(ceil_div(self.positions, found.parts), depth) * depth
        self.parts = ceil_div(self.positions, self.span)
        self.sums = self.y_sums = None
        if wanted.dw is not None:
            size = self.tiles * self.parts * variant.rows * self.columns
            self.sums = scratch.take(size, FLOAT32)
        if wanted.db is not None:
            self.y_sums = scratch.take(self.parts * conv.filters, FLOAT32)

        self.blocks, self.steps = self.tiles * self.parts, self.span // depth

    def args(self, staging: Staging) -> tuple[object, ...]:
        """Of its kernel; the last is the layout."""
        given = (staging.at["x"], staging.at["y"], staging.rows, self.sums, self.y_sums)
        return (*given, self._layout(staging.width, self.conv.group_channels))

    def totals(self, staging: Staging) -> Launch:
        """What parts add up to."""
        dw, db = self.wanted.dw, self.wanted.db
        if dw is None:
            assert db is not None
            return total(self.y_sums, db, self.parts, self.variant.slots)
        conv, of_bias = self.conv, summers(self.parts)
        if dw.channels_last or math.prod(conv.kernel) == 1:
            filters, each, blocks = 0, *self._of_lines()
        else:
            channel_tiles = ceil_div(self.of.group_channels, TOTAL_CHANNELS)
            filters, each = self._at_once(channel_tiles)
            blocks = conv.group * ceil_div(conv.group_filters, filters) * channel_tiles
        more = ceil_div(db.size * of_bias, THREADS) if db is not None else 0
        layout = self._layout(staging.width, self.of.group_channels)
        how = (filters, self.of.group_filters, blocks, of_bias, layout)
        given = (self.sums, dw, self.y_sums, db, self.parts, each, *how)
        config = Config((blocks + more,), (THREADS,))
        return launch("staged_total", config, given, self.variant.slots)

    def _of_lines(self) -> tuple[int, int]:
        """Threads for each four weights, and blocks, of lines of channels."""
        lines = self.conv.filters * math.prod(self.conv.kernel)
        fours = lines * ceil_div(self.of.group_channels, 4)
        room = TOTALS * self.device.multiprocessors * THREADS
        choices = (n for n in (8, 4, 2) if n * fours <= room and 2 * n <= self.parts)
        each = next(choices, 1)
        return each, ceil_div(fours, THREADS // each)

    def _at_once(self, channel_tiles: int) -> tuple[int, int]:
        """Filters of a block that adds parts up, so that all multiprocessors have some, and threads
        for each sum."""
        of_kernel, lines = math.prod(self.conv.kernel), self.conv.filters * channel_tiles
        filters = ceil_div(lines, TOTALS * self.device.multiprocessors)
        filters = min(filters, TOTAL_LINES // of_kernel, self.conv.group_filters)
        items = filters * of_kernel * TOTAL_CHANNELS // 4
        choices = (n for n in (8, 4, 2) if n * items <= THREADS and 2 * n <= self.parts)
        return filters, next(choices, 1)

    def _layout(self, width: int, channels: int) -> np.void:
        conv = self.conv
        return by_value(
            WeightLayout,
            image=conv.image,
            output=conv.output,
            **taps(conv),
            step=(0,) * 4,
            groups=conv.group,
            rows=conv.group_filters,
            channels=channels,
            padded_channels=align_up(conv.group_channels, width),
            row_tiles=self.row_tiles,
            column_tiles=self.column_tiles,
            first_tile=0,
            tiles=self.tiles,
            positions=self.positions,
            positions_of_part=self.span,
        )
