# SPDX-License-Identifier: MIT
"""Convolutions and gradients on tensor cores over staged arrays: kernels conv__stage, conv__staged.

Staged: an array (n, channel, position) copied to scratch memory as (n, position, channel), channels
padded to whole 16-byte vectors. See cuda_src/conv/staging.cuh and staged_tile.cuh.

Throughout, `wanted` has the call's arrays and says which results are computed (`Wanted`), `variant`
is the compilation of the kernels with the rows of a tile (`Variant`), and tf32 the number of
products of TF32 for each of float32: 1, 3, or 0 (exact).
"""

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
    Scratch,
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
    JoinedGroups,
    StagedArray,
    StagedImage,
    StagedRow,
    StagingLayout,
    WeightLayout,
)
from .plan_gathered import ImageProduct
from .plan_launches import Wanted, bias_gradient, geometry, summers, total
from .plan_model import image_rows, join_groups, tile_nbytes, tiles_of, weight_tiles
from .plan_variants import BIAS_ITEMSIZE, Variant, is_single, staged_variant

TOTALS = 4  # blocks for each multiprocessor, of the launch that adds up parts of dW
SUMMING_COLUMNS = 4  # tiles of columns, at most, where blocks of the first also sum a float32 Y


class Staging:
    """The launch of conv__stage: which of X, Y and W it stages, and where tiles read each.

    conv is `unjoined` with small groups joined (`join_groups`), n_joined to one. variant: of the
    kernels; wanted: the call's arrays and results. By name, "x", "y" or "w":

        arrays   the caller's array; None where no tile reads it
        lines    (n, channels, plane), the extents that it is staged as
        at       the array itself where tiles read it as it lies, else scratch memory; or None

    `rows` is scratch memory for n_rows StagedRows, one for each output position (n, o), or None.
    `width`: elements of a 16-byte vector.
    """

    def __init__(
        self,
        conv: Convolution,
        variant: Variant,
        scratch: ScratchMemory,
        wanted: Wanted,
        unjoined: Convolution,
    ) -> None:
        """Decide what is staged for the results of `wanted`, and take scratch memory for it."""
        self.unjoined, self.n_joined = unjoined, unjoined.group // conv.group
        self.conv, self.is_gradient = conv, wanted.is_gradient
        self.variant, self.width = variant, VEC_NBYTES // variant.dtype.itemsize
        reads_x = wanted.dw is not None or (wanted.image is not None and not wanted.is_gradient)
        reads_y = wanted.sums or (wanted.image is not None and wanted.is_gradient)
        self.arrays = {
            "x": wanted.x if reads_x else None,
            "y": wanted.y if reads_y else None,
            "w": wanted.w if wanted.image is not None else None,
        }
        self.lines = {
            "x": (conv.batch, conv.channels, math.prod(conv.image)),
            "y": (conv.batch, conv.filters, math.prod(conv.output)),
            "w": self._lines_of_w(),
        }
        self.at = {name: self._place(scratch, name) for name in self.arrays}
        self.positions = conv.batch * math.prod(conv.output)
        has_rows = wanted.sums and not is_single(conv)  # a single one's positions read themselves
        self.n_rows = align_up(self.positions, PANEL) if has_rows else 0
        self.rows = scratch.take(self.n_rows, StagedRow.of().dtype) if has_rows else None

    def _lines_of_w(self) -> tuple[int, int, int]:
        """Return (n, channels, plane) of W, where `channels` is the axis that tiles sum over.

        convolution       (M, C/G, taps): channels are summed
        data gradient     (G, M/G, C/G taps): filters are; (taps, C/G) if W has channels last
        joined groups     (taps, rows, depth): conv__stage writes [row][tap][depth] itself
        """
        conv, of_kernel = self.conv, math.prod(self.conv.kernel)
        if self.n_joined > 1:
            rows, depth = conv.filters, conv.group_channels
            if self.is_gradient:
                rows, depth = conv.channels, conv.group_filters
            return of_kernel, rows, depth
        if self.is_gradient:
            return conv.group, conv.group_filters, conv.group_channels * of_kernel
        return conv.filters, conv.group_channels, of_kernel

    def _place(self, scratch: ScratchMemory, name: str) -> Scratch | Spec | None:
        """Return the array itself where tiles read it as it lies, or scratch memory for a copy."""
        spec, (n, channels, plane) = self.arrays[name], self.lines[name]
        if spec is None or (self._is_last(name) and spec.aligned and channels % self.width == 0):
            return spec
        if name == "w" and self.w_as_it_lies:
            return spec
        return scratch.take(n * self.variant.pad_channels(channels) * plane, self.variant.dtype)

    @property
    def w_as_it_lies(self) -> bool:
        """Return True if X's gradient, which sums filters, reads W without its being staged."""
        w, conv = self.arrays["w"], self.conv
        lies = w is not None and w.aligned and is_single(conv)
        fits = conv.group_channels % self.width == 0 and conv.group_filters % PANEL == 0
        can = self.variant.warpgroups and self.is_gradient and self.n_joined == 1
        return can and lies and fits

    def _is_last(self, name: str) -> bool:
        """Return True if an array's elements along `channels` (see `lines`) are contiguous."""
        spec, (_, _, plane) = self.arrays[name], self.lines[name]
        if spec is None or (name == "w" and (self.is_gradient or self.n_joined > 1)):
            return False
        return spec.channels_last or plane == 1

    def launches(self) -> list[Launch]:
        """Return a list of the one launch of conv__stage; empty if nothing is to be staged.

        Blocks are for X, Y, W, then rows. Its arguments are (read, written) of each array.
        """
        fields = {name: self._array(name) for name in self.arrays}
        blocks = sum(int(field["blocks"]) for field in fields.values())
        if not blocks and not self.n_rows:
            return []
        layout = by_value(
            StagingLayout,
            **fields,
            groups=self._groups(),
            **geometry(self.conv),
            n_rows=self.n_rows,
            positions=self.positions,
            vectors=ceil_div(self.conv.channels, self.width),
        )
        args = [
            a
            for name, field in fields.items()
            for a in ((self.arrays[name], self.at[name]) if field["blocks"] else (None, None))
        ]
        config = Config((blocks + ceil_div(self.n_rows, THREADS),), (THREADS,))
        return [Launch("conv__stage", config, (*args, self.rows, layout), self.variant.slots)]

    def _groups(self) -> np.void:
        """Return the struct JoinedGroups: `joined` groups of W became one, 0 if none were joined.

        The other fields are of one group before that.
        """
        conv, w = self.unjoined, self.arrays["w"]
        return by_value(
            JoinedGroups,
            joined=self.n_joined if self.n_joined > 1 else 0,
            filters=conv.group_filters,
            channels=conv.group_channels,
            taps=math.prod(conv.kernel),
            is_gradient=self.is_gradient,
            channels_last=w is not None and w.channels_last,
        )

    def _array(self, name: str) -> np.void:
        """Return the struct StagedArray; a block has PANEL channels x PANEL positions of the plane.

        padded: channels up to whole vectors. width: positions that a thread loads as one vector, 0:
        of all channels; -1: channels are contiguous already. blocks: 0 if the array is not staged.
        """
        n, channels, plane = self.lines[name]
        spec, padded = self.arrays[name], self.variant.pad_channels(channels)
        plane_tiles = ceil_div(plane, PANEL)
        blocks = n * plane_tiles * ceil_div(padded, PANEL)
        if name == "w" and self.n_joined > 1:
            blocks = ceil_div(n * channels * plane // self.width, THREADS)
        is_staged = isinstance(self.at[name], Scratch)
        together = _loaded_together(channels, plane, self.width, spec)
        return by_value(
            StagedArray,
            channels=channels,
            padded=padded,
            plane=plane,
            width=-1 if self._is_last(name) else together,
            plane_tiles=plane_tiles,
            blocks=blocks if is_staged else 0,
        )


def _loaded_together(channels: int, plane: int, width: int, spec: Spec | None) -> int:
    """Return how many of a channel's `plane` positions a thread loads as one vector: 1 or more.

    0: vectors of `width` elements go on from one channel into the next, in an aligned array whose
    channels have so few positions that a tile has them all.
    """
    n = neighbours(plane, width, spec)
    are_as_one = n == 1 and plane <= PANEL and channels % width == 0
    return 0 if are_as_one and spec is not None and spec.aligned else n


def neighbours(plane: int, width: int, spec: Spec | None) -> int:
    """Return how many neighbouring positions of a channel a thread loads or stores together.

    `width` (elements of a 16-byte vector), or half of it, where that divides the `plane` positions
    of a channel of an aligned array; else 1.
    """
    if spec is None or not spec.aligned:
        return 1
    return next((n for n in (width, width // 2) if plane % n == 0), 1)


# ---- plans --------------------------------------------------------------------------------------


def staged_plan(device: Device, conv: Convolution, wanted: Wanted, tf32: int) -> Plan:
    """Plan the results of `wanted`: launches that stage, multiply, and add up parts of dW and db.

    Each array is staged once for all results. A gradient of a bias that tiles do not sum has
    launches of its own. tf32: products of TF32 for each of float32: 1, 3, or 0 (exact).
    """
    y, dtype = wanted.y, wanted.dtype
    unjoined, conv = conv, join_groups(conv, dtype)
    rows = tile_rows(device, conv, dtype, wanted, tf32)
    variant = staged_variant(device, dtype, rows, tf32=tf32)
    if wanted.db is not None and not _sums_y(device, conv, y, tf32):
        bias = bias_gradient(device, y, wanted.db, variant.slots)
        rest = replace(wanted, db=None)
        has_more = rest.sums or rest.image is not None
        return staged_plan(device, unjoined, rest, tf32).then(bias) if has_more else bias
    scratch = ScratchMemory()
    image = sums = None
    staging = Staging(conv, variant, scratch, wanted, unjoined)
    if wanted.sums:
        sums = _Sums(device, conv, variant, wanted, scratch, unjoined)
    if wanted.image is not None:
        image = _Image(device, conv, variant, wanted)
    steps = [*staging.launches(), _product(device, variant, image, sums, staging)]
    if sums is not None:
        steps.append(sums.totals())
    return scratch.plan(*steps)


def _sums_y(device: Device, conv: Convolution, y: Spec, tf32: int) -> bool:
    """Return True if blocks that compute W's gradient also sum Y, for the bias's gradient.

    They do in 2-byte types, and in TF32 where Y is read as it lies, not rounded before, and where
    tiles of the first columns, which do it, are not so few that all others wait for them. y: dY.
    tf32: products of TF32 for each of float32: 1, 3, or 0 (exact).
    """
    if y.dtype.itemsize == BIAS_ITEMSIZE:
        return True
    lies = y.aligned and conv.filters % (VEC_NBYTES // y.dtype.itemsize) == 0
    if not (tf32 and lies and (y.channels_last or math.prod(conv.output) == 1)):
        return False
    return weight_tiles(device, conv, y.dtype, tf32).column_tiles <= SUMMING_COLUMNS


def tile_rows(device: Device, conv: Convolution, dtype: Dtype, wanted: Wanted, tf32: int) -> int:
    """Return the rows of a block's tile: 64 or 128 channels or filters.

    wanted: the results; where W's gradient is one, its tiles decide, and X's gradient beside it has
    tiles of as many rows. tf32: products of TF32 for each of float32: 1, 3, or 0 (exact).
    """
    if wanted.sums:
        return weight_tiles(device, conv, dtype, tf32).rows
    return image_rows(device, conv, dtype, tf32, is_gradient=wanted.is_gradient)


def _product(
    device: Device, variant: Variant, image: _Image | None, sums: _Sums | None, staging: Staging
) -> Launch:
    """Return the launch of conv__staged, with blocks for an image, for W's gradient, or for both.

    staging: where tiles read the staged arrays. Blocks with the longer sums come first, so that the
    short ones fill up the end.
    """
    *summed, of_weights = sums.args(staging) if sums else (*[None] * 5, _blank(WeightLayout))
    no_image = (*[None] * 4, 1, _blank(StagedImage), _blank(ImageLayout))
    *written, layout = image.args(staging) if image else no_image
    images, weights = (product.blocks if product else 0 for product in (image, sums))
    is_first = image is not None and sums is not None and image.steps > sums.steps
    threads = tiles_of(device, variant.dtype, variant.tf32)[variant.rows].threads
    shared = tile_nbytes(device, variant.rows, variant.dtype, variant.tf32)
    summed[0] = summed[0] or summed[1]  # of X addresses are computed, also where nobody reads it
    config = Config((images + weights,), (threads,), shared)
    args = (*summed, images if is_first else 0, weights, *written, of_weights, layout)
    return Launch("conv__staged", config, args, variant.slots)


def _blank(struct: Struct) -> np.void:
    """Return the struct filled with zeros, for blocks of which there are none."""
    blank: np.void = np.zeros((), struct.of().dtype)[()]  # type: ignore[assignment]
    return blank


class _Image:
    """Blocks and arguments of conv__staged for a convolution or its data gradient.

    wanted     the call's arrays: the image `target` is computed from `source`, w and bias
    variant    the compilation of the kernel, with the rows of a tile
    residues   p % stride of a gradient's positions p, of which each has tiles of its own, as it
               reads other taps; how many of all axes: 1 in a convolution, or if strides are 1
    tiles      tiles of rows (channels), of all groups
    blocks     tiles x tiles of columns (positions) x residues
    steps      about the stages of a block's sum: (taps of a residue) x (channels read) / (those of
               a stage)
    """

    def __init__(self, device: Device, conv: Convolution, variant: Variant, wanted: Wanted) -> None:
        """Divide the image `wanted.target` of `conv` into the variant's tiles."""
        self.conv, self.wanted = conv, wanted
        columns = tiles_of(device, variant.dtype, variant.tf32)[variant.rows].columns
        self.product = ImageProduct(conv, variant, columns, is_gradient=wanted.is_gradient)
        self.residues = math.prod(self.product.of_axes)
        self.tiles = conv.group * self.product.row_tiles
        self.blocks = self.tiles * self.product.column_tiles * self.residues
        of_stage = LINE_NBYTES // variant.dtype.itemsize
        self.steps = math.prod(conv.kernel) * self.product.depth // self.residues // of_stage

    def args(self, staging: Staging) -> tuple[object, ...]:
        """Return its arguments of conv__staged, from the array it reads on; last the layout.

        staging: where tiles read the arrays.
        """
        product, wanted = self.product, self.wanted
        read = staging.at["y" if wanted.is_gradient else "x"]
        arrays = (read, staging.at["w"], wanted.bias, wanted.image)
        layout = product.layout(0, self.tiles, self.conv)
        return (*arrays, product.column_tiles, self._staged_image(staging), layout)

    def _staged_image(self, staging: Staging) -> np.void:
        """Return the struct StagedImage: how the image is written, and where W is (by `staging`).

        together: neighbouring columns, or rows (channels) if they are last, of one store.
        w_row, w_tap: 16-byte vectors from a row of W, and from a tap, to the next.
        """
        product, image, w = self.product, self.wanted.target, self.wanted.w
        width = staging.width
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
        elif self.wanted.is_gradient and w and w.channels_last and staging.n_joined == 1:
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
    """Blocks and arguments of conv__staged for the gradients of W and a bias, and their total.

    Positions (n, o) are divided into `parts` of `span`; a block sums one part of one tile, in
    `steps` stages. conv is `unjoined` with small groups joined (`join_groups`); wanted: dw, db are
    the results, x, y (dY) are read. In scratch memory, or None where not wanted:

        sums     [part][tile][row][column] for W
        y_sums   [part][filter] for the bias
    """

    def __init__(
        self,
        device: Device,
        conv: Convolution,
        variant: Variant,
        wanted: Wanted,
        scratch: ScratchMemory,
        unjoined: Convolution,
    ) -> None:
        """Divide the sums into tiles and parts, and take scratch memory for those that are wanted.

        variant: the compilation of the kernels, with the rows of a tile.
        """
        self.device, self.conv, self.variant, self.wanted = device, conv, variant, wanted
        self.unjoined = unjoined
        self.columns = tiles_of(device, variant.dtype, variant.tf32)[variant.rows].columns
        tiles = weight_tiles(device, conv, variant.dtype, variant.tf32)
        self.row_tiles = tiles.row_tiles
        self.column_tiles = tiles.column_tiles if wanted.dw is not None else 1
        self.tiles = conv.group * self.row_tiles * self.column_tiles
        self.positions = conv.batch * math.prod(conv.output)
        depth = LINE_NBYTES // variant.dtype.itemsize
        self.span = ceil_div(ceil_div(self.positions, tiles.parts), depth) * depth
        self.parts = ceil_div(self.positions, self.span)
        self.sums = self.y_sums = None
        if wanted.dw is not None:
            size = self.tiles * self.parts * variant.rows * self.columns
            self.sums = scratch.take(size, FLOAT32)
        if wanted.db is not None:
            self.y_sums = scratch.take(self.parts * conv.filters, FLOAT32)
        self.blocks, self.steps = self.tiles * self.parts, self.span // depth

    def args(self, staging: Staging) -> tuple[object, ...]:
        """Return its arguments of conv__staged, up to `y_sums`; the last is the layout."""
        arrays = (staging.at["x"], staging.at["y"], staging.rows, self.sums, self.y_sums)
        return (*arrays, self._layout(self.conv.group_channels))

    def totals(self) -> Launch:
        """Return the launch that adds up the parts: conv__staged_total; conv__total for db alone.

        filters: of a block, where W is written as (filter, channel, tap); 0: channels last.
        """
        dw, db = self.wanted.dw, self.wanted.db
        if dw is None:
            assert db is not None
            return total(self.y_sums, db, self.parts, self.variant.slots)
        conv, of_bias = self.conv, summers(self.parts)
        if dw.channels_last or math.prod(conv.kernel) == 1:
            filters, each, blocks = 0, *self._of_lines()
        else:
            channel_tiles = ceil_div(self.unjoined.group_channels, TOTAL_CHANNELS)
            filters, each = self._at_once(channel_tiles)
            blocks = conv.group * ceil_div(conv.group_filters, filters) * channel_tiles
        more = ceil_div(db.size * of_bias, THREADS) if db is not None else 0
        layout = self._layout(self.unjoined.group_channels)
        how = (filters, self.unjoined.group_filters, blocks, of_bias, layout)
        args = (self.sums, dw, self.y_sums, db, self.parts, each, *how)
        config = Config((blocks + more,), (THREADS,))
        return Launch("conv__staged_total", config, args, self.variant.slots)

    def _of_lines(self) -> tuple[int, int]:
        """Return (threads for each sum, blocks) where W is written as (filter, tap, channel).

        A sum is that of four neighbouring channels over all parts.
        """
        lines = self.conv.filters * math.prod(self.conv.kernel)
        fours = lines * ceil_div(self.unjoined.group_channels, 4)
        room = TOTALS * self.device.multiprocessors * THREADS
        each = self._each(fours, room)
        return each, ceil_div(fours, THREADS // each)

    def _at_once(self, channel_tiles: int) -> tuple[int, int]:
        """Return (filters of a block, threads for each sum) where W is (filter, channel, tap).

        Filters are so few that each multiprocessor has TOTALS blocks. channel_tiles: blocks that
        the channels of a filter are divided among.
        """
        of_kernel, lines = math.prod(self.conv.kernel), self.conv.filters * channel_tiles
        filters = ceil_div(lines, TOTALS * self.device.multiprocessors)
        filters = min(filters, TOTAL_LINES // of_kernel, self.conv.group_filters)
        return filters, self._each(filters * of_kernel * TOTAL_CHANNELS // 4, THREADS)

    def _each(self, items: int, room: int) -> int:
        """Return how many threads share an item's sum over parts: 8, 4, 2 or 1.

        `items` are summed with room for `room` threads; each thread adds at least two parts.
        """
        return next((n for n in (8, 4, 2) if n * items <= room and 2 * n <= self.parts), 1)

    def _layout(self, channels: int) -> np.void:
        """Return the struct WeightLayout; channels: of a group, which joining may have changed."""
        conv = self.conv
        return by_value(
            WeightLayout,
            **geometry(conv),
            step=(0,) * 4,  # not used by kernels over staged arrays
            groups=conv.group,
            rows=conv.group_filters,
            channels=channels,
            padded_channels=self.variant.pad_channels(conv.group_channels),
            row_tiles=self.row_tiles,
            column_tiles=self.column_tiles,
            first_tile=0,
            tiles=self.tiles,
            positions=self.positions,
            positions_of_part=self.span,
        )
