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
COPIED_CHANNELS = 384  # of a 1 x 1 layer; on an H200 256 are too few, 512 enough
TILES_EACH = 16  # tiles of dY, about, that a thread adds up for a bias's gradient
SUMMING_COLUMNS = 4  # tiles of columns, at most, where blocks of the first also sum a float32 Y


class Staging:
    """The launch of conv__stage: which of X, Y and W it stages, and where tiles read each.

    conv is `unjoined` with small groups joined (`join_groups`), n_joined to one. variant: of the
    kernels; wanted: the call's arrays and results. By name, "x", "y" or "w":

        arrays   the caller's array; None where nothing is computed from it
        lines    (n, channels, plane), the extents that it is staged as
        at       the array itself where tiles read it as it lies, else scratch memory; or None

    `rows` is scratch memory for n_rows StagedRows, one for each output position (n, o), or None.
    y_lines: scratch memory for Y as (filter, position), which warpgroups multiply in TF32, or None.
    y_sums: for Y's sums over each of y_parts tiles of positions, (part, filter), or None. `width`:
    elements of a 16-byte vector.
    """

    def __init__(
        self,
        conv: Convolution,
        variant: Variant,
        scratch: ScratchMemory,
        wanted: Wanted,
        unjoined: Convolution,
        *,
        sums_y: bool,
    ) -> None:
        """Decide what is staged for the results of `wanted`, and take scratch memory for it.

        sums_y: blocks that stage Y also sum it, for a bias's gradient.
        """
        self.unjoined, self.n_joined = unjoined, unjoined.group // conv.group
        self.conv, self.is_gradient = conv, wanted.is_gradient
        self.variant, self.width = variant, VEC_NBYTES // variant.dtype.itemsize
        has_image, has_dw = wanted.image is not None, wanted.dw is not None
        of_lines = has_dw and variant.cuts_floats
        sums_y = sums_y and wanted.db is not None
        reads_x = has_dw or (has_image and not wanted.is_gradient)
        sums_tiles = (has_dw and not of_lines) or (wanted.db is not None and not sums_y)
        self.reads_y = sums_tiles or (has_image and wanted.is_gradient)
        # What warpgroups cut off to TF32, so that staging rounds it.
        of_image = ("w", "y" if wanted.is_gradient else "x") if has_image else ()
        self.cut = of_image if variant.cuts_floats else ()
        self.arrays = {
            "x": wanted.x if reads_x else None,
            "y": wanted.y if self.reads_y or of_lines or sums_y else None,
            "w": wanted.w if has_image else None,
        }
        self.lines = {
            "x": (conv.batch, conv.channels, math.prod(conv.image)),
            "y": (conv.batch, conv.filters, math.prod(conv.output)),
            "w": self._lines_of_w(),
        }
        self.at = {name: self._place(scratch, name) for name in self.arrays}
        self.positions = conv.batch * math.prod(conv.output)
        pitch = align_up(self.positions, LINE_NBYTES // variant.dtype.itemsize)
        self.y_lines = scratch.take(conv.filters * pitch, variant.dtype) if of_lines else None
        self.y_parts = conv.batch * ceil_div(math.prod(conv.output), PANEL)
        self.y_sums = scratch.take(self.y_parts * conv.filters, FLOAT32) if sums_y else None
        # A single one's positions read themselves.
        has_rows = (has_dw or sums_tiles) and not is_single(conv)
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
        if spec is None or (name == "y" and not self.reads_y):
            return None
        if self._lies(name) and name not in self.cut:
            return spec
        if name == "w" and self.w_as_it_lies:
            return spec
        return scratch.take(n * self.variant.pad_channels(channels) * plane, self.variant.dtype)

    def _lies(self, name: str) -> bool:
        """Return True if tiles can read the array without its being staged."""
        spec, (_, channels, _) = self.arrays[name], self.lines[name]
        aligned = spec is not None and spec.aligned
        return self._is_last(name) and aligned and channels % self.width == 0

    @property
    def x_of_sums(self) -> Scratch | Spec | None:
        """Return X for W's gradient: as it lies, if it does, not rounded for an image beside it."""
        return self.arrays["x"] if self._lies("x") else self.at["x"]

    @property
    def w_as_it_lies(self) -> bool:
        """Return True if X's gradient, which sums filters, reads W without its being staged."""
        w, conv = self.arrays["w"], self.conv
        lies = w is not None and w.aligned and is_single(conv)
        fits = conv.group_channels % self.width == 0 and conv.group_filters % PANEL == 0
        can = self.variant.warpgroups and not self.variant.cuts_floats
        can = can and self.is_gradient and self.n_joined == 1
        return can and lies and fits

    def _is_last(self, name: str) -> bool:
        """Return True if an array's elements along `channels` (see `lines`) are contiguous."""
        spec, (_, _, plane) = self.arrays[name], self.lines[name]
        if spec is None or (name == "w" and (self.is_gradient or self.n_joined > 1)):
            return False
        return spec.channels_last or plane == 1

    def launches(self) -> list[Launch]:
        """Return a list of the one launch of conv__stage; empty if nothing is to be staged.

        Blocks are for X, Y, W, then rows. Its arguments are (read, written) of each array, and what
        else Y becomes.
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
        x, y, w = (
            (self.arrays[name], self.at[name]) if field["blocks"] else (None, None)
            for name, field in fields.items()
        )
        args = (*x, *y, self.y_lines, self.y_sums, *w, self.rows, layout)
        config = Config((blocks + ceil_div(self.n_rows, THREADS),), (THREADS,))
        return [Launch("conv__stage", config, args, self.variant.slots)]

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
        is_staged |= name == "y" and (self.y_lines or self.y_sums) is not None
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
    if dtype == FLOAT32 and not _copies_pay(conv, y):
        device = replace(device, has_warpgroups=False)
    rows = tile_rows(device, conv, dtype, wanted, tf32)
    variant = staged_variant(device, dtype, rows, tf32=tf32)
    sums_y = dtype == FLOAT32 and (variant.cuts_floats or not _lies(conv, y))
    if wanted.db is not None and not (sums_y or _tiles_sum_y(device, conv, y, tf32)):
        bias = bias_gradient(device, y, wanted.db, variant.slots)
        rest = replace(wanted, db=None)
        has_more = rest.sums or rest.image is not None
        return staged_plan(device, unjoined, rest, tf32).then(bias) if has_more else bias
    scratch = ScratchMemory()
    image = sums = None
    staging = Staging(conv, variant, scratch, wanted, unjoined, sums_y=sums_y)
    if wanted.dw is not None or (wanted.sums and not sums_y):
        sums = _Sums(device, conv, variant, wanted, scratch, staging)
    if wanted.image is not None:
        image = _Image(device, conv, variant, wanted)
    steps = staging.launches()
    if image is not None or sums is not None:
        steps.append(_product(device, variant, image, sums, staging))
    if wanted.dw is not None and sums is not None:
        steps.append(sums.totals())
    elif wanted.db is not None:
        steps.append(_Bias(wanted.db, staging, sums).total(variant))
    return scratch.plan(*steps)


def _copies_pay(conv: Convolution, y: Spec) -> bool:
    """Return True if warpgroups multiply floats for which they need copies, in TF32.

    Only small 1 x 1 layers with channels last are faster as they lie, multiplied by warps.
    """
    is_small = min(conv.group_channels, conv.group_filters) < COPIED_CHANNELS
    return not (is_single(conv) and y.channels_last and is_small)


def _lies(conv: Convolution, y: Spec) -> bool:
    """Return True if tiles can read Y without its being staged, if they do not cut it off."""
    lies = y.aligned and conv.filters % (VEC_NBYTES // y.dtype.itemsize) == 0
    return lies and (y.channels_last or math.prod(conv.output) == 1)


def _tiles_sum_y(device: Device, conv: Convolution, y: Spec, tf32: int) -> bool:
    """Return True if blocks that compute W's gradient also sum Y, for the bias's gradient.

    They do in 2-byte types, and in TF32 where Y is read as it lies, not rounded before, and where
    tiles of the first columns, which do it, are not so few that all others wait for them. y: dY.
    tf32: products of TF32 for each of float32: 1, 3, or 0 (exact).
    """
    if y.dtype.itemsize == BIAS_ITEMSIZE:
        return True
    few = weight_tiles(device, conv, y.dtype, tf32).column_tiles <= SUMMING_COLUMNS
    return bool(tf32) and _lies(conv, y) and few


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
    no_image = (*[None] * 4, _blank(StagedImage), _blank(ImageLayout))
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
        return (*arrays, self._staged_image(staging), layout)

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


class _Bias:
    """The total of a bias's gradient `db` over `parts` parts, [part][filter], in scratch memory.

    Blocks that stage Y have summed tiles of positions, else those that compute W's gradient have
    (sums). `each` threads share a sum.
    """

    def __init__(self, db: Spec, staging: Staging, sums: _Sums | None) -> None:
        """Take the parts of `staging`, or of `sums`."""
        self.db = db
        if staging.y_sums is not None or sums is None:
            self.y_sums, self.parts = staging.y_sums, staging.y_parts
            enough = max(1, self.parts // TILES_EACH)
            self.each = min(THREADS, 1 << enough.bit_length() - 1)
        else:
            self.y_sums, self.parts = sums.y_sums, sums.parts
            self.each = summers(self.parts)

    def total(self, variant: Variant) -> Launch:
        """Return the launch that adds up the parts alone."""
        return total(self.y_sums, self.db, self.parts, variant.slots, self.each)


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
        staging: Staging,
    ) -> None:
        """Divide the sums into tiles and parts, and take scratch memory for those that are wanted.

        variant: the compilation of the kernels, with the rows of a tile. staging: which may sum Y.
        """
        self.device, self.conv, self.variant, self.wanted = device, conv, variant, wanted
        self.unjoined, self.staging = staging.unjoined, staging
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
        if wanted.db is not None and staging.y_sums is None:
            self.y_sums = scratch.take(self.parts * conv.filters, FLOAT32)
        self.blocks, self.steps = self.tiles * self.parts, self.span // depth

    def args(self, staging: Staging) -> tuple[object, ...]:
        """Return its arguments of conv__staged, up to `y_sums`; the last is the layout."""
        y = staging.y_lines or staging.at["y"]
        arrays = (staging.x_of_sums, y, staging.rows, self.sums, self.y_sums)
        return (*arrays, self._layout(self.conv.group_channels))

    def totals(self) -> Launch:
        """Return the launch of conv__staged_total, which adds up the parts, of a bias too.

        filters: of a block, where W is written as (filter, channel, tap); 0: channels last.
        """
        conv, dw, db = self.conv, self.wanted.dw, self.wanted.db
        assert dw is not None
        if dw.channels_last or math.prod(conv.kernel) == 1:
            filters, each, blocks = 0, *self._of_lines()
        else:
            channel_tiles = ceil_div(self.unjoined.group_channels, TOTAL_CHANNELS)
            filters, each = self._at_once(channel_tiles)
            blocks = conv.group * ceil_div(conv.group_filters, filters) * channel_tiles
        bias: tuple[object, ...] = (None, None)
        counts, more = (0, 1), 0
        if db is not None:
            of = _Bias(db, self.staging, self)
            bias, counts = (of.y_sums, db), (of.parts, of.each)
            more = ceil_div(db.size * of.each, THREADS)
        layout = self._layout(self.unjoined.group_channels)
        how = (filters, self.unjoined.group_filters, blocks, *counts, layout)
        args = (self.sums, dw, *bias, self.parts, each, *how)
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
