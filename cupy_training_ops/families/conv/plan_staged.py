# SPDX-License-Identifier: MIT
"""Launches over arrays whose channels lie side by side; see cuda_src/conv/staged_tile.cuh."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ...declare.schema import Spec
from ...dtypes import FLOAT16, FLOAT32, Dtype
from ...plan import VEC_NBYTES, Config, Device, Launch, Plan, Scratch, ScratchMemory
from ...plan import align_up, by_value, ceil_div
from .extents import Convolution, Shape
from .facts import (
    LINE_NBYTES,
    PANEL,
    STAGED_BLOCKS,
    STAGED_STAGES,
    STAGED_TAPS,
    STAGED_THREADS,
    THREADS,
    StagedArray,
    StagedRow,
    StagingLayout,
    WeightLayout,
)
from .plan_image import ImageProduct
from .plan_launches import launch, summers, taps, total
from .plan_variants import TENSOR_CORES, Variant, image_has_lines, lines_of_weight

OTHER_SHARED_NBYTES = 5 * 1024  # beside the stages
MOST_W_NBYTES = 16 * 1024**2
MOST_SUMS_NBYTES = 32 * 1024**2
MOST_VECTORS = 2**31 - 1
LEAST_DEPTH = 16  # channels, of which fewer would be mostly padding
IMAGE_COLUMNS = {128: 128, 64: 256}  # by rows of a tile
WEIGHT_COLUMNS = {128: 128, 64: 192}

# In stages of a block's sum: what it takes beside them, and a tile's parts that are added up.
BLOCK_COST = 5.0
SUM_COST = 0.036


@dataclass(frozen=True)
class Wanted:
    """What is computed of X, Y and W, all of them of one type: an image, from Y or X, and the
    gradients of W and of a bias."""

    x: Spec | None
    y: Spec | None
    w: Spec | None = None
    image: Spec | None = None
    bias: Spec | None = None  # that is added to the image
    is_gradient: bool = False
    dw: Spec | None = None
    db: Spec | None = None

    @property
    def sums(self) -> bool:
        """Whether there is a sum over positions."""
        return self.dw is not None or self.db is not None


def can_stage(device: Device, conv: Convolution, dtype: Dtype, tf32: bool) -> bool:
    """Whether tiles of staged arrays exist for this convolution."""
    width = VEC_NBYTES // dtype.itemsize
    channels = (conv.group_channels, conv.group_filters)
    fits = conv.group == 1 or all(n % width == 0 for n in channels)
    sizes = (math.prod(conv.x_shape), math.prod(conv.y_shape))
    return (
        device.capability >= TENSOR_CORES
        and (dtype.itemsize == 2 or (tf32 and dtype == FLOAT32))
        and fits
        and min(channels) >= LEAST_DEPTH
        and 1 <= math.prod(conv.kernel) <= STAGED_TAPS
        and 0 < min(sizes)
        and max(sizes) // width * 2 <= MOST_VECTORS
        and math.prod(conv.w_shape) * dtype.itemsize <= MOST_W_NBYTES
        and bool(_rows(device))
    )


def _rows(device: Device) -> list[int]:
    """Rows of tiles whose stages have room."""
    return [
        rows
        for rows, columns in IMAGE_COLUMNS.items()
        if stages_nbytes(rows, columns) + OTHER_SHARED_NBYTES <= device.max_shared_nbytes
    ]


def stages_nbytes(rows: int, columns: int) -> int:
    """Of shared memory of a block."""
    return STAGED_STAGES * (rows + columns) * LINE_NBYTES


def image_rows(device: Device, conv: Convolution, *, is_gradient: bool) -> int:
    """Rows of an image's tiles, with which all blocks take least time."""
    return min(_rows(device), key=lambda rows: image_cost(device, conv, rows, is_gradient))


def image_cost(device: Device, conv: Convolution, rows: int, is_gradient: bool) -> float:
    """Of all blocks, in stages."""
    variant = Variant(FLOAT16, rows)
    product = ImageProduct(conv, variant, IMAGE_COLUMNS[rows], is_gradient=is_gradient)
    n_residues = math.prod(product.of_axes)
    blocks = conv.group * product.row_tiles * product.column_tiles * n_residues
    steps = math.prod(conv.kernel) * product.depth / n_residues / PANEL
    return ceil_div(blocks, STAGED_BLOCKS * device.multiprocessors) * (steps + BLOCK_COST)


def weight_split(device: Device, conv: Convolution, dtype: Dtype, rows: int) -> tuple[int, float]:
    """Parts of the sum with which all blocks, and adding parts up, take least time; and that."""
    tiles = math.prod(_weight_tiles(conv, dtype, rows))
    steps = ceil_div(conv.batch * math.prod(conv.output), LINE_NBYTES // dtype.itemsize)
    slots = STAGED_BLOCKS * device.multiprocessors
    most = MOST_SUMS_NBYTES // (tiles * rows * WEIGHT_COLUMNS[rows] * 4)

    def cost(parts: int) -> float:
        each = ceil_div(steps, parts) + BLOCK_COST
        return ceil_div(tiles * parts, slots) * each + SUM_COST * tiles * parts

    parts = min(range(1, max(1, min(most, steps, 2 * slots)) + 1), key=cost)
    return parts, cost(parts)


def _weight_tiles(conv: Convolution, dtype: Dtype, rows: int) -> tuple[int, int, int]:
    """Groups, and tiles of rows and of columns of each."""
    padded = align_up(conv.group_channels, VEC_NBYTES // dtype.itemsize)
    columns = math.prod(conv.kernel) * padded
    return conv.group, ceil_div(conv.group_filters, rows), ceil_div(columns, WEIGHT_COLUMNS[rows])


def weight_rows(device: Device, conv: Convolution, dtype: Dtype) -> int:
    """Rows of the tiles of W's gradient, with which all blocks take least time."""
    return min(_rows(device), key=lambda rows: weight_split(device, conv, dtype, rows)[1])


def staged_image(
    device: Device, conv: Convolution, arrays: tuple[Spec, Spec], tf32: bool
) -> bool:
    """Whether an image is made of staged arrays: what is read, and what is written."""
    pays = not image_has_lines(conv, *arrays)
    return pays and can_stage(device, conv, arrays[0].dtype, tf32)


def staged_weight(
    device: Device, conv: Convolution, arrays: tuple[Spec, Spec], tf32: bool
) -> bool:
    """Whether the gradients of W and of a bias are summed over staged X and Y."""
    pays = lines_of_weight(conv, *arrays) != "_lines"
    return pays and can_stage(device, conv, arrays[0].dtype, tf32)


# ---- launches -----------------------------------------------------------------------------------


def staged(device: Device, conv: Convolution, dtype: Dtype, tf32: bool, wanted: Wanted) -> Plan:
    """One launch that stages what others read, each array once."""
    scratch = ScratchMemory()
    staging = _Staging(conv, dtype, scratch, wanted)
    rounds = tf32 and dtype == FLOAT32
    steps: list[Launch] = []
    if wanted.sums:
        rows = weight_rows(device, conv, dtype)
        sums = _Sums(device, conv, Variant(dtype, rows, rounds), wanted, scratch)
        steps += sums.launches(staging)
    if wanted.image is not None:
        rows = image_rows(device, conv, is_gradient=wanted.is_gradient)
        steps.append(_image(conv, Variant(dtype, rows, rounds), wanted, staging))
    first = staging.launch(steps[0].slots)
    return scratch.plan(first, *steps)


class _Staging:
    """What is staged, and where."""

    def __init__(
        self, conv: Convolution, dtype: Dtype, scratch: ScratchMemory, wanted: Wanted
    ) -> None:
        self.conv, self.dtype = conv, dtype
        self.width = VEC_NBYTES // dtype.itemsize
        reads_x = wanted.dw is not None or (wanted.image is not None and not wanted.is_gradient)
        reads_y = wanted.sums or (wanted.image is not None and wanted.is_gradient)
        self.given = {
            "x": wanted.x if reads_x else None,
            "y": wanted.y if reads_y else None,
            "w": wanted.w if wanted.image is not None else None,
        }
        self.lines = {
            "x": (conv.batch, conv.channels, math.prod(conv.image)),
            "y": (conv.batch, conv.filters, math.prod(conv.output)),
            "w": self._lines_of_w(wanted.is_gradient),
        }
        self.at = {
            name: None if spec is None else self._take(scratch, *self.lines[name])
            for name, spec in self.given.items()
        }
        self.positions = conv.batch * math.prod(conv.output)
        self.n_rows = align_up(self.positions, PANEL) if wanted.sums else 0
        self.rows = scratch.take(self.n_rows, StagedRow.of().dtype) if wanted.sums else None

    def _lines_of_w(self, is_gradient: bool) -> tuple[int, int, int]:
        """W as (channel, taps, filter) or (filter, taps, channel), each of a group."""
        conv, of_kernel = self.conv, math.prod(self.conv.kernel)
        if is_gradient:
            return conv.group, conv.group_filters, conv.group_channels * of_kernel
        return conv.filters, conv.group_channels, of_kernel

    def _take(self, scratch: ScratchMemory, n: int, channels: int, plane: int) -> Scratch:
        return scratch.take(n * align_up(channels, self.width) * plane, self.dtype)

    def launch(self, slots: Mapping[str, str]) -> Launch:
        """Of all that is staged."""
        fields = {name: self._array(name) for name in self.given}
        blocks = sum(int(field["blocks"]) for field in fields.values())
        layout = by_value(
            StagingLayout,
            **fields,
            image=self.conv.image,
            output=self.conv.output,
            **taps(self.conv),
            n_rows=self.n_rows,
            positions=self.positions,
            vectors=align_up(self.conv.channels, self.width) // self.width,
        )
        args = [a for name, spec in self.given.items() for a in (spec, self.at[name])]
        config = Config((blocks + ceil_div(self.n_rows, THREADS),), (THREADS,))
        return launch("stage", config, (*args, self.rows, layout), dict(slots))

    def _array(self, name: str) -> np.void:
        n, channels, plane = self.lines[name]
        spec, padded = self.given[name], align_up(channels, self.width)
        plane_tiles = ceil_div(plane, PANEL)
        blocks = n * plane_tiles * ceil_div(padded, PANEL)
        return by_value(
            StagedArray,
            channels=channels,
            padded=padded,
            plane=plane,
            width=_neighbours(plane, self.width, spec),
            plane_tiles=plane_tiles,
            blocks=0 if spec is None else blocks,
        )


def _neighbours(plane: int, width: int, spec: Spec | None) -> int:
    """Positions that are loaded or stored together."""
    if spec is None or not spec.aligned:
        return 1
    return next((n for n in (width, width // 2) if plane % n == 0), 1)


def _image(conv: Convolution, variant: Variant, wanted: Wanted, staging: _Staging) -> Launch:
    columns = IMAGE_COLUMNS[variant.rows]
    product = ImageProduct(conv, variant, columns, is_gradient=wanted.is_gradient)
    tiles = conv.group * product.row_tiles
    blocks = tiles * product.column_tiles * math.prod(product.of_axes)
    is_dense = math.prod(product.of_axes) == 1
    width = _neighbours(math.prod(product.extents), staging.width, wanted.image) if is_dense else 1
    read = staging.at["y" if wanted.is_gradient else "x"]
    layout = product.layout(0, tiles, conv)
    args = (read, staging.at["w"], wanted.bias, wanted.image, product.column_tiles, width, layout)
    config = Config((blocks,), (STAGED_THREADS,), stages_nbytes(variant.rows, columns))
    return launch("staged_image", config, args, variant.slots)


class _Sums:
    """The gradients of W and of a bias."""

    def __init__(
        self,
        device: Device,
        conv: Convolution,
        variant: Variant,
        wanted: Wanted,
        scratch: ScratchMemory,
    ) -> None:
        self.device, self.conv, self.variant, self.wanted = device, conv, variant, wanted
        self.columns = WEIGHT_COLUMNS[variant.rows]
        groups, self.row_tiles, self.column_tiles = _weight_tiles(conv, variant.dtype, variant.rows)
        if wanted.dw is None:
            self.column_tiles = 1
        self.tiles = groups * self.row_tiles * self.column_tiles
        parts, _ = weight_split(device, conv, variant.dtype, variant.rows)
        self.positions = conv.batch * math.prod(conv.output)
        depth = LINE_NBYTES // variant.dtype.itemsize
        self.span = ceil_div(ceil_div(self.positions, parts), depth) * depth
        self.parts = ceil_div(self.positions, self.span)
        self.sums = self.y_sums = None
        if wanted.dw is not None:
            size = self.tiles * self.parts * variant.rows * self.columns
            self.sums = scratch.take(size, FLOAT32)
        if wanted.db is not None:
            self.y_sums = scratch.take(self.parts * conv.filters, FLOAT32)

    def launches(self, staging: _Staging) -> Iterator[Launch]:
        """Sums of parts, and their totals."""
        shared = stages_nbytes(self.variant.rows, self.columns)
        config = Config((self.tiles * self.parts,), (STAGED_THREADS,), shared)
        args = (staging.at["x"], staging.at["y"], staging.rows, self.sums, self.y_sums)
        layout = self._layout(staging.width)
        yield launch("staged_weight", config, (*args, layout), self.variant.slots)
        dw, db = self.wanted.dw, self.wanted.db
        if dw is None:
            assert db is not None
            yield total(self.device, db.dtype, self.y_sums, db, self.parts)
            return
        each = summers(self.parts)
        blocks = ceil_div(dw.size * each, THREADS)
        blocks += ceil_div(db.size * each, THREADS) if db is not None else 0
        given = (self.sums, dw, self.y_sums, db, self.parts, each, dw.size, layout)
        yield launch("staged_total", Config((blocks,), (THREADS,)), given, self.variant.slots)

    def _layout(self, width: int) -> np.void:
        conv = self.conv
        return by_value(
            WeightLayout,
            image=conv.image,
            output=conv.output,
            **taps(conv),
            step=(0,) * 4,
            groups=conv.group,
            rows=conv.group_filters,
            channels=conv.group_channels,
            padded_channels=align_up(conv.group_channels, width),
            row_tiles=self.row_tiles,
            column_tiles=self.column_tiles,
            first_tile=0,
            tiles=self.tiles,
            positions=self.positions,
            positions_of_part=self.span,
        )
