# SPDX-License-Identifier: MIT
"""Variants: types and tiles that kernels are compiled with; see cuda_src/conv/conv.cu, tile.cuh."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ...declare.schema import Spec
from ...dtypes import FLOAT32, FLOAT64, Dtype
from ...plan import VEC_NBYTES, Device, align_up, ceil_div, slots
from .extents import Convolution, Shape
from .facts import BLOCKS, COLUMNS, FEW_ROWS, PART_NBYTES, TAPS, WIDE_ROWS

TENSOR_CORES = (8, 0)  # from this compute capability on they are used
MANY_STAGES_NBYTES = 160 * 1024  # of shared memory that a block may have, from which on 4 stages
LINE_ELEMENTS = 4  # lines are copied in vectors where their length is a multiple of it
TF32_PAD = 8  # elements behind those of a place of the sum, in shared memory
SPREAD_ROWS = 32  # of a tile, into which the residues of all channels have to fit
MAX_DEPTHWISE_FILTERS = 4  # of a group of one channel, beyond which a matrix product is better
BIAS_ITEMSIZE = 2  # of types for which W's kernels sum the gradient of a bias too
MAX_OFFSET = 2**31 - 1  # of an element in what a group has of one image

# Time of a block by the rows of its tile, relative to 128 rows.
COST = {128: 1.0, 64: 0.58, 32: 0.4}

# Kernel to its twin with tiles of FEW_ROWS rows, which is compiled in the variant of 2 * FEW_ROWS.
FEW = {
    "conv__pack": "conv__pack_few",
    "conv__image": "conv__image_few",
    "conv__weight": "conv__weight_few",
    "conv__weight_total": "conv__weight_total_few",
}


@dataclass(frozen=True)
class Variant:
    """One compilation of cuda_src/conv/conv.cu, and the kernels in it that a plan launches."""

    dtype: Dtype
    rows: int  # of a tile
    tf32: int = 0  # products of TF32 for each of float32: 1, 3, or 0 (exact)
    wide: bool = False  # offsets in an image have 64 bits
    staged: bool = False  # the compilation has the kernels over staged arrays
    warpgroups: bool = False  # warpgroups multiply what is staged
    lines: bool = False  # vectors are copied from arrays as they lie (1 x 1 kernels)
    taps: int = TAPS  # that depthwise kernels have at once; WIDE_TAPS: it has no other kernels

    @property
    def slots(self) -> dict[str, str]:
        """Return the macros CTO_T, CTO_ROWS, CTO_OFFSET ... by name, without CTO_."""
        is_half = self.dtype.itemsize == 2
        # Of 2-byte types, tiles of 64 rows always have wide offsets, and others never.
        is_wide = self.rows == 2 * FEW_ROWS if is_half else self.wide or self.dtype == FLOAT64
        offset = np.dtype(np.int64 if is_wide and not self.staged else np.uint32)
        rows = 2 * FEW_ROWS if self.has_few else self.rows
        how = {"TF32": self.tf32, "STAGED": self.staged, "WARPGROUPS": self.warpgroups}
        return slots(T=self.dtype, ROWS=rows, OFFSET=offset, TAPS_AT_ONCE=self.taps, **how)

    @property
    def cuts_floats(self) -> bool:
        """Return True if warpgroups multiply floats, which they cut off to TF32."""
        return self.warpgroups and self.dtype == FLOAT32

    @property
    def has_few(self) -> bool:
        """Return True if the variant's kernels are those that FEW names, for few rows of floats."""
        return self.dtype == FLOAT32 and self.rows == FEW_ROWS

    def kernel(self, symbol: str) -> str:
        """Return the kernel's name, or that of its twin with few rows."""
        return FEW[symbol] if self.has_few else symbol

    @property
    def depth(self) -> int:
        """Return DEPTH: terms of a tile's sum that are in shared memory at a time."""
        return PART_NBYTES // self.dtype.itemsize

    def stages_nbytes(self, stages: int, *, weight: bool) -> int:
        """Return the bytes of `stages` parts of A (rows x depth) and B (depth x COLUMNS).

        weight: in W's gradient lines in shared memory are along the depth; else they are the rows
        of A and the columns of B at one k of the sum. Each line is padded against bank conflicts.
        """
        pad = TF32_PAD if self.tf32 else VEC_NBYTES // self.dtype.itemsize
        by_k = self.depth * (self.rows + COLUMNS + 2 * pad)
        a = self.rows * (self.depth + VEC_NBYTES // self.dtype.itemsize)
        b = COLUMNS * (self.depth + VEC_NBYTES // self.dtype.itemsize)
        return stages * (a + b if weight else by_k) * self.dtype.itemsize

    def pad_channels(self, channels: int) -> int:
        """Return the channels rounded up to whole 16-byte vectors."""
        return align_up(channels, VEC_NBYTES // self.dtype.itemsize)


def image_variant(
    device: Device,
    conv: Convolution,
    dtype: Dtype,
    tf32: int,
    *,
    is_gradient: bool,
    lines: bool = False,
) -> Variant:
    """Return the variant of a convolution or its data gradient whose blocks take least time in all.

    is_gradient: of the data gradient. tf32: 1, products of float32 may be rounded to TF32, else 0
    or 3. lines: the arrays are copied by vectors as they lie (1 x 1 kernels).
    """
    sides = Sides.of(conv, is_gradient)
    n_residues = math.prod(sides.residues)
    if sides.depth * math.prod(sides.read) > MAX_OFFSET and not lines:
        return _wide(device, dtype)
    positions = conv.batch * ceil_div(math.prod(sides.written), n_residues)
    blocks = conv.group * n_residues * ceil_div(positions, COLUMNS)

    def cost(of_tile: int) -> float:
        waves = ceil_div(blocks * ceil_div(sides.rows, of_tile), BLOCKS * device.multiprocessors)
        return waves * COST[of_tile]

    fitting = _rows(device, dtype, tf32, lines=lines)
    return Variant(dtype, min(fitting, key=cost), rounds(device, dtype, tf32), lines=lines)


def weight_variant(
    device: Device, conv: Convolution, dtype: Dtype, tf32: int, *, lines: bool = False
) -> Variant:
    """Return the variant of W's gradient whose tiles of rows take least time.

    tf32: 1, products of float32 may be rounded to TF32, else 0 or 3. The number of blocks does not
    matter: few tiles have long sums, which are divided into parts. lines: X and Y are copied by
    vectors as they lie.
    """
    x = conv.group_channels * math.prod(conv.image)
    y = conv.group_filters * math.prod(conv.output)
    if max(x, y) > MAX_OFFSET and not lines:
        return _wide(device, dtype)

    def cost(of_tile: int) -> float:
        return ceil_div(conv.group_filters, of_tile) * COST[of_tile]

    fitting = _rows(device, dtype, tf32, lines=lines)
    return Variant(dtype, min(fitting, key=cost), rounds(device, dtype, tf32), lines=lines)


def image_has_lines(
    device: Device, conv: Convolution, read: Spec, written: Spec, tf32: int
) -> bool:
    """Return True if conv__image_lines can be used: a 1 x 1 kernel, images that vectors divide.

    read, written: the images. tf32: 1, float32 may be rounded to TF32, else 0 or 3.
    """
    vectors = _multiplies_lines(device, written.dtype, tf32) and _has_vectors(read)
    return vectors and is_single(conv) and written.aligned


def weight_kernel(device: Device, conv: Convolution, x: Spec, y: Spec, tf32: int) -> str:
    """Return the kernel of W's gradient: conv__weight_lines copies x and y (dY) by vectors.

    conv__weight_y_lines copies y by vectors, conv__weight neither. tf32: 1, float32 may be rounded
    to TF32, else 0 or 3.
    """
    if not (_multiplies_lines(device, y.dtype, tf32) and _has_vectors(y)):
        return "conv__weight"
    if is_single(conv) and x.aligned:
        return "conv__weight_lines"
    return "conv__weight_y_lines" if y.dtype.itemsize == 2 else "conv__weight"


def _multiplies_lines(device: Device, dtype: Dtype, tf32: int) -> bool:
    """Return True if tensor cores multiply arrays of this dtype that are not staged."""
    return dtype.itemsize == 2 or rounds(device, dtype, tf32)


def _has_vectors(array: Spec) -> bool:
    """Return True if each channel's positions begin at a multiple of LINE_ELEMENTS elements."""
    return array.aligned and math.prod(array.shape[2:]) % LINE_ELEMENTS == 0


def is_single(conv: Convolution) -> bool:
    """Return True if each position reads itself alone: a 1 x 1 kernel without strides and pads."""
    is_1x1 = math.prod(conv.kernel) == math.prod(conv.strides) == 1 and not any(conv.pads)
    return is_1x1 and conv.image == conv.output


def stages(device: Device) -> int:
    """Return how many parts of a sum conv__..._lines has in shared memory: 4 or 2.

    4 where two blocks of a multiprocessor have room for them.
    """
    return 4 if device.max_shared_nbytes >= MANY_STAGES_NBYTES else 2


def choices(device: Device, dtype: Dtype) -> list[int]:
    """Return the rows of tiles that kernels are compiled with, the preferred ones first."""
    if dtype == FLOAT64:
        return [32]
    is_measured = TENSOR_CORES <= device.capability < (12, 0)
    if dtype.itemsize == 2:
        return [128, 64, 32] if is_measured else [64]
    return [128, 64, 32] if device.capability < (12, 0) else [64, 32]


def _rows(device: Device, dtype: Dtype, tf32: int, *, lines: bool) -> list[int]:
    """Return the rows of tiles of kernels without staged arrays; lines: of conv__..._lines.

    tf32: 1, float32 may be rounded to TF32, else 0 or 3. Products with many rows are mostly over
    staged arrays, so WIDE_ROWS is left out there; in TF32 only tiles of lines have so many.
    """
    if rounds(device, dtype, tf32):
        most = WIDE_ROWS if lines else 2 * FEW_ROWS
        return [n for n in choices(device, dtype) if 2 * FEW_ROWS <= n <= most]
    is_staged = dtype == FLOAT32 and device.capability >= TENSOR_CORES
    is_staged = is_staged or (dtype.itemsize == 2 and not lines)
    return [n for n in choices(device, dtype) if n < WIDE_ROWS or not is_staged]


def _wide(device: Device, dtype: Dtype) -> Variant:
    """Return the variant with 64-bit offsets, for images of 2^31 elements or more."""
    return Variant(dtype, min(2 * FEW_ROWS, choices(device, dtype)[0]), wide=True)


def small_variant(dtype: Dtype, taps: int = TAPS) -> Variant:
    """Return the variant of kernels without tiles: depthwise, transposing, sums of Y, conv__total.

    It is one compilation for each type, in which other kernels are few, or rarely used. With
    WIDE_TAPS `taps` another one, of depthwise kernels alone.
    """
    if dtype.itemsize == 2:
        return Variant(dtype, WIDE_ROWS, lines=True, taps=taps)
    if dtype == FLOAT32:
        return Variant(dtype, 64, wide=True, taps=taps)
    return Variant(dtype, 32)


def staged_variant(device: Device, dtype: Dtype, rows: int, *, tf32: int = 0) -> Variant:
    """Return the variant of conv__staged and conv__stage with `rows` rows of a tile.

    tf32: products of TF32 for each of float32: 1, 3, or 0 (exact).
    """
    tf32 = tf32 if dtype == FLOAT32 else 0
    groups = multiply_by_warpgroups(device, dtype, tf32)
    return Variant(dtype, rows, tf32, staged=True, warpgroups=groups)


def multiply_by_warpgroups(device: Device, dtype: Dtype, tf32: int) -> bool:
    """Return True if warpgroups multiply staged arrays, and not warps: 2-byte types, and TF32."""
    is_tf32 = dtype == FLOAT32 and tf32 == 1
    return device.has_warpgroups and (dtype.itemsize == 2 or is_tf32)


def lines_variant(dtype: Dtype, taps: int = TAPS, *, sums: bool) -> Variant:
    """Return the variant of depthwise kernels for arrays with channels last.

    taps: that they have at once. sums: of those that compute W's gradient, else of those for an
    image.
    """
    if taps > TAPS:
        return small_variant(dtype, taps)
    if dtype.itemsize == 2:
        return Variant(dtype, FEW_ROWS, staged=True)
    return small_variant(dtype) if sums else Variant(dtype, FEW_ROWS)


def direct_variant(dtype: Dtype) -> Variant:
    """Return the variant of conv__direct_...: gradients of few channels (plan_direct.py)."""
    is_half = dtype.itemsize == 2
    return lines_variant(dtype, sums=True) if is_half else Variant(dtype, 2 * FEW_ROWS, tf32=True)


def rounds(device: Device, dtype: Dtype, tf32: int) -> bool:
    """Return True if tensor cores multiply float32 rounded to TF32: with tf32 = 1, from 8.0 on."""
    return tf32 == 1 and dtype == FLOAT32 and device.capability >= TENSOR_CORES


def parts_of_sum(device: Device, tiles: int, positions: int, most: int) -> int:
    """Return how many parts of the sum over `positions`, at most `most`, take least time.

    tiles: of the result, each of which is summed in as many parts. The unit is the time of a tile's
    whole sum. Blocks take 1 / parts each, in waves of n_blocks; adding up takes about tiles /
    positions for each part.
    """
    n_blocks = BLOCKS * device.multiprocessors

    def cost(parts: int) -> float:
        return ceil_div(tiles * parts, n_blocks) / parts + parts * tiles / max(1, positions)

    return min(range(1, max(1, min(most, 2 * n_blocks)) + 1), key=cost)


def spread_residues(conv: Convolution) -> Convolution:
    """Rewrite a data gradient of stride s as one of stride 1; return `conv` if it does not fit.

    Along each axis, X[i s + r], r < s, becomes channel r at position i, so an image of n elements
    becomes s channels of n / s. All channels read the same places of Y, those of `window`.
    """
    n_residues = math.prod(conv.strides)
    rows = conv.group_channels * n_residues
    divides = all(i % s == 0 for i, s in zip(conv.image, conv.strides, strict=True))
    is_dense = set(conv.dilations) == {1}
    if n_residues == 1 or rows > SPREAD_ROWS or not (divides and is_dense):
        return conv
    kernel, pads = window(conv)
    return replace(
        conv,
        channels=conv.channels * n_residues,
        image=tuple(i // s for i, s in zip(conv.image, conv.strides, strict=True)),
        kernel=kernel,
        strides=(1,) * conv.rank,
        pads=pads,
    )


def window(conv: Convolution) -> tuple[Shape, Shape]:
    """Return the kernel and the pads, along each axis, of `spread_residues(conv)`.

    Tap k < K of Y[o] is added to X[o s - p + k]. So X[i s + r], r < s, reads Y[o] for

        i - (K - 1 - p) // s <= o <= i + ceil(p / s)

    which are ceil(p / s) + (K - 1 - p) // s + 1 places; ceil(p / s) are the pads.
    """
    pads = tuple(ceil_div(p, s) for p, s in zip(conv.pads, conv.strides, strict=True))
    each = zip(conv.kernel, conv.strides, conv.pads, pads, strict=True)
    return tuple(pad + (k - 1 - p) // s + 1 for k, s, p, pad in each), pads


class Sides(NamedTuple):
    """The image that is written and the one that is read: Y and X, or in a gradient X and Y."""

    rows: int  # channels of a group that are written
    depth: int  # channels of a group that are read
    written: Shape  # spatial extents
    read: Shape
    residues: Shape  # of written positions by the strides, along each axis; 1 in a convolution

    @classmethod
    def of(cls, conv: Convolution, is_gradient: bool) -> Sides:
        """Return the sides of a convolution or its data gradient."""
        x, y = (conv.group_channels, conv.image), (conv.group_filters, conv.output)
        (depth, read), (rows, written) = (y, x) if is_gradient else (x, y)
        steps = residues(conv) if is_gradient else (1,) * conv.rank
        return cls(rows, depth, written, read, steps)


def residues(conv: Convolution) -> Shape:
    """Return, along each axis, how many residues i % stride the positions i of X have."""
    return tuple(min(s, i) for s, i in zip(conv.strides, conv.image, strict=True))
