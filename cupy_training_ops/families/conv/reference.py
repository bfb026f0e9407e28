# SPDX-License-Identifier: MIT
"""Convolutions and their gradients in NumPy. Formulas: `operators.py`.

Each is a matrix product with X unfolded (im2col): a row for every channel and tap (an element of
the kernel), a column for every output. So many outputs at a time that X unfolded has about _PIECE
elements: some images, and a box of their positions. Products are in float32, of float64 in float64;
results are rounded once. In all functions c is the convolution, with its shapes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TypedDict, Unpack

import numpy as np

from ...dtypes import FLOAT64, HostArray
from ...rules.pieces import column_sums
from ...rules.widening import cast, computed_in, quiet, wide
from .extents import Attributes, Convolution, Shape

_PIECE = 2**20  # elements of X unfolded that are in memory at a time

_ALL = slice(None)

Box = tuple[range, ...]  # outputs, by their places along each axis
Index = tuple[int | slice, ...]


class Keywords(TypedDict):
    """The attributes of Conv and of ConvGrad."""

    auto_pad: str
    dilations: Shape | None
    group: int
    kernel_shape: Shape | None
    pads: Shape | None
    strides: Shape | None
    allow_tf32: bool
    tf32x3: bool


class TransposedKeywords(Keywords):
    """The attributes of ConvTranspose and of ConvTransposeGrad."""

    output_padding: Shape | None
    output_shape: Shape | None


def conv(
    x: HostArray,
    w: HostArray,
    b: HostArray | None = None,
    **attributes: Unpack[Keywords],
) -> HostArray:
    """Return Y (N, M, ...) of x (N, C, ...), w (M, C / group, ...) and b (M,)."""
    return _forward(Attributes.of("Conv", attributes).convolution(x.shape, w.shape), x, w, b)


def conv_grad(
    dy: HostArray,
    x: HostArray,
    w: HostArray,
    **attributes: Unpack[Keywords],
) -> tuple[HostArray, HostArray, HostArray]:
    """Return dX, dW and dB from dy (N, M, ...), x (N, C, ...) and w (M, C / group, ...)."""
    convolution = Attributes.of("ConvGrad", attributes).convolution(x.shape, w.shape)
    return *_gradients(convolution, dy, x, w), _bias_gradient(dy)


def conv_transpose(
    x: HostArray,
    w: HostArray,
    b: HostArray | None = None,
    **attributes: Unpack[TransposedKeywords],
) -> HostArray:
    """Return Y (N, M, ...) of x (N, C, ...), w (C, M / group, ...) and b (M,)."""
    transposed = Attributes.of("ConvTranspose", attributes)
    return _data_gradient(transposed.transposed_convolution(x.shape, w.shape), x, w, b)


def conv_transpose_grad(
    dy: HostArray,
    x: HostArray,
    w: HostArray,
    **attributes: Unpack[TransposedKeywords],
) -> tuple[HostArray, HostArray, HostArray]:
    """Return dX, dW and dB from dy (N, M, ...), x (N, C, ...) and w (C, M / group, ...)."""
    transposed = Attributes.of("ConvTransposeGrad", attributes)
    convolution = transposed.transposed_convolution(x.shape, w.shape)
    dx = _forward(convolution, dy, w, None)
    return dx, _weight_gradient(convolution, dy, x), _bias_gradient(dy)


@quiet
def _forward(c: Convolution, x: HostArray, w: HostArray, bias: HostArray | None) -> HostArray:
    """Return Y = W times X unfolded (c: the convolution), plus a bias for each filter or none."""
    y = np.empty(c.y_shape, x.dtype)
    filters = _matrix(c, w)
    for images in _blocks(c):
        source = wide(x[images])
        for box in _boxes(c):
            products = (filters @ _unfold(c, source, box)).reshape(c.filters, -1)
            if bias is not None:
                products += wide(bias)[:, None]
            lines = products.reshape(c.filters, len(source), *map(len, box))
            y[(images, _ALL, *_slices(box))] = lines.swapaxes(0, 1)
    return y


@quiet
def _data_gradient(
    c: Convolution, dy: HostArray, w: HostArray, bias: HostArray | None
) -> HostArray:
    """Return dX = W transposed times dY, folded (col2im), plus a bias for each channel or none.

    c: the convolution whose data gradient it is.
    """
    dx = np.empty(c.x_shape, dy.dtype)
    filters = np.ascontiguousarray(_matrix(c, w).swapaxes(1, 2))  # BLAS is slower if transposed
    for images in _blocks(c):
        sums = np.zeros(dx[images].shape, computed_in(dy.dtype))
        if bias is not None:
            sums += bias.reshape(-1, *[1] * c.rank)
        for box in _boxes(c):
            _fold(c, filters @ _lines(c, dy[images], box), sums, box)
        dx[images] = sums
    return dx


def _gradients(
    c: Convolution, dy: HostArray, x: HostArray, w: HostArray
) -> tuple[HostArray, HostArray]:
    """Return (dX, dW); with strides of 1 both from one dY unfolded, unless that takes long.

    dX[i] is the sum over k of W[k] dY[i + p - k d], a convolution of dY with the taps k reversed,
    and dW[k] the sum over i of X[i] dY[i + p - k d]. `back` is that convolution: dY is its X.
    """
    is_long = max(c.strides, default=1) > 1 or c.filters > 4 * c.channels or not c.batch
    # Unfolded, dY has zeros beside it, which make NaN of an infinity.
    if is_long or not (np.isfinite(x).all() and np.isfinite(w).all()):
        return _data_gradient(c, dy, w, None), _weight_gradient(c, x, dy)
    pads = [d * (k - 1) - p for k, d, p in zip(c.kernel, c.dilations, c.pads, strict=True)]
    back = replace(
        c, channels=c.filters, filters=c.channels, image=c.output, output=c.image, pads=tuple(pads)
    )
    return _gradients_of_stride_1(c, back, dy, x, w)


@quiet
def _gradients_of_stride_1(
    c: Convolution, back: Convolution, dy: HostArray, x: HostArray, w: HostArray
) -> tuple[HostArray, HostArray]:
    """Return (dX, dW) of a convolution `c` of stride 1, both from dY unfolded once.

    back: the convolution that makes dX of dY, with dY as its X and reversed taps.
    """
    dx, taps = np.empty(c.x_shape, dy.dtype), math.prod(c.kernel)
    # W with reversed taps, as back's filters (group, channel, filter * taps).
    by_tap = wide(w).reshape(c.group, c.group_filters, c.group_channels, taps)[..., ::-1]
    filters = by_tap.swapaxes(1, 2).reshape(c.group, c.group_channels, -1)
    total = np.zeros(filters.swapaxes(1, 2).shape, FLOAT64)
    for images in _blocks(back):
        source = wide(dy[images])
        for box in _boxes(back):
            columns = _unfold(back, source, box)
            lines = (filters @ columns).reshape(c.channels, len(source), *map(len, box))
            dx[(images, _ALL, *_slices(box))] = lines.swapaxes(0, 1)
            total += columns @ _lines(back, x[images], box).swapaxes(1, 2)
    of_taps = total.reshape(c.group, c.group_filters, taps, c.group_channels)[:, :, ::-1]
    return dx, cast(of_taps.swapaxes(2, 3), x.dtype).reshape(c.w_shape)


@quiet
def _weight_gradient(c: Convolution, x: HostArray, dy: HostArray) -> HostArray:
    """Return dW of convolution c, summed in float64: X unfolded times dY transposed."""
    total = np.zeros((c.group, math.prod(c.w_shape[1:]), c.group_filters), FLOAT64)
    for images in _blocks(c):
        source = wide(x[images])
        for box in _boxes(c):
            columns = _unfold(c, source, box)
            total += columns @ _lines(c, dy[images], box).swapaxes(1, 2)
    return cast(total.swapaxes(1, 2), x.dtype).reshape(c.w_shape)


@quiet
def _bias_gradient(dy: HostArray) -> HostArray:
    """Return the sums of dY (N, M, ...) over all axes but the second."""
    channels = wide(dy).reshape(*dy.shape[:2], math.prod(dy.shape[2:]))
    return cast(column_sums(channels.sum(2)), dy.dtype)


def _matrix(c: Convolution, w: HostArray) -> HostArray:
    """Return W as (group, filters of a group, channels of a group * taps)."""
    return wide(w).reshape(c.group, c.group_filters, -1)


def _blocks(c: Convolution) -> Iterator[slice]:
    """Yield slices of images, as many at a time as a piece has room for, at least one."""
    step = max(1, _outputs_of_piece(c) // max(1, math.prod(c.output)))
    return (slice(start, start + step) for start in range(0, c.batch, step))


def _boxes(c: Convolution) -> Iterator[Box]:
    """Yield boxes, a range along each axis, that make up the outputs of an image.

    A box has as many outputs as a piece has room for: the last axes whole, then a part of one.
    """
    room, ranges = _outputs_of_piece(c), []
    for extent in reversed(c.output):
        step = max(1, min(extent, room))
        room //= step
        starts = range(0, extent, step)
        ranges.append([range(start, min(start + step, extent)) for start in starts])
    return itertools.product(*reversed(ranges))


def _outputs_of_piece(c: Convolution) -> int:
    """Return how many columns of X unfolded have about _PIECE elements."""
    return max(1, _PIECE // (c.channels * math.prod(c.kernel)))


def _slices(box: Box) -> Index:
    return tuple(slice(part.start, part.stop) for part in box)


def _lines(c: Convolution, dy: HostArray, box: Box) -> HostArray:
    """Return dY of a box as (group, filters of a group, images * outputs of the box)."""
    part = dy[(_ALL, _ALL, *_slices(box))]
    return wide(part.swapaxes(0, 1)).reshape(c.group, c.group_filters, -1)


def _unfold(c: Convolution, x: HostArray, box: Box) -> HostArray:
    """Return X unfolded, (group, channels of a group * taps, images * outputs of the box).

    A column has all that one output reads; taps beside X read 0. A 1 x 1 kernel needs no copy.
    """
    extents = (c.channels, math.prod(c.kernel), len(x), *map(len, box))
    by_channel = x.swapaxes(0, 1)
    if (max(c.kernel, default=1), max(c.strides, default=1), any(c.pads)) == (1, 1, False):
        part = by_channel[(_ALL, _ALL, *_slices(box))]
        if part.size == math.prod(extents):  # else some taps are beside X
            return part.reshape(c.group, -1, math.prod(extents[2:]))
    columns = np.zeros(extents, x.dtype)
    for of_columns, of_image in _taps(c, box):
        columns[of_columns] = by_channel[of_image]
    return columns.reshape(c.group, -1, math.prod(extents[2:]))


def _fold(c: Convolution, columns: HostArray, dx: HostArray, box: Box) -> None:
    """Add every column, laid out as `_unfold`'s, to the elements of dx that it would read there."""
    extents = (c.channels, math.prod(c.kernel), len(dx), *map(len, box))
    unfolded, by_channel = columns.reshape(extents), dx.swapaxes(0, 1)
    for of_columns, of_image in _taps(c, box):
        by_channel[of_image] += unfolded[of_columns]


def _taps(c: Convolution, box: Box) -> Iterator[tuple[Index, Index]]:
    """Yield for each element k of the kernel the outputs of a box that read X by it, and their X.

    The former are places in (channel, k, image, output), the latter in (channel, image, element).
    """
    each = zip(c.kernel, c.strides, c.dilations, c.pads, c.image, box, strict=True)
    axes = [
        [_overlap(part, stride, k * dilation - pad, image) for k in range(kernel)]
        for kernel, stride, dilation, pad, image, part in each
    ]
    for k, pairs in enumerate(itertools.product(*axes)):
        outputs, elements = zip(*pairs, strict=True)
        yield (_ALL, k, _ALL, *outputs), (_ALL, _ALL, *elements)


def _overlap(part: range, stride: int, offset: int, image: int) -> tuple[slice, slice]:
    """Return the outputs o of `part` with 0 <= o stride + offset < image, and their elements.

    Slices: places in `part`, and elements o stride + offset of the image; both empty if there are
    none.
    """
    first = max(part.start, -(offset // stride))
    last = min(part.stop - 1, (image - 1 - offset) // stride)
    if last < first:
        return slice(0, 0), slice(0, 0)
    elements = slice(first * stride + offset, last * stride + offset + 1, stride)
    return slice(first - part.start, last + 1 - part.start), elements
