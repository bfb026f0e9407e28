# SPDX-License-Identifier: MIT
"""Where the windows of a pool lie, from shapes and ONNX attributes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...errors import refuse
from ..conv.extents import MAX_AXES, MAX_EXTENT, Attributes, Shape

Slices = tuple[Any, ...]


@dataclass(frozen=True)
class WindowAxis:
    """One axis: window o of `output` has the elements o stride - pad + k dilation, k < kernel.

    Those among the `image` elements of X count; `end` pads are behind them.
    """

    image: int
    output: int
    kernel: int
    stride: int
    dilation: int
    pad: int
    end: int

    @property
    def pads_end(self) -> int:
        """Where the pads behind X end."""
        return self.image + self.end

    def overlap(self, k: int) -> tuple[slice, slice]:
        """The windows whose element k is one of X, and these elements."""
        offset = k * self.dilation - self.pad
        first = max(0, -(offset // self.stride))
        last = min(self.output - 1, (self.image - 1 - offset) // self.stride)
        if last < first:
            return slice(0, 0), slice(0, 0)
        elements = slice(first * self.stride + offset, last * self.stride + offset + 1, self.stride)
        return slice(first, last + 1), elements


@dataclass(frozen=True)
class Windows:
    """The windows of a pool in planes of X (batch, channels, ...), which has 1 to 3 axes."""

    batch: int
    channels: int
    axes: tuple[WindowAxis, ...]

    @property
    def image(self) -> Shape:
        """The extents of a plane of X."""
        return tuple(axis.image for axis in self.axes)

    @property
    def output(self) -> Shape:
        """The extents of a plane of Y."""
        return tuple(axis.output for axis in self.axes)

    @property
    def y_shape(self) -> Shape:
        """The shape of Y."""
        return (self.batch, self.channels, *self.output)

    def numbers(self, storage_order: int) -> Shape:
        """Steps of an element's number along each axis: by rows, or, for 1, by columns."""
        image, axes = self.image, range(len(self.axes))
        if storage_order:
            return tuple(math.prod(image[:axis]) for axis in axes)
        return tuple(math.prod(image[axis + 1 :]) for axis in axes)

    def taps(self) -> Iterator[tuple[Slices, Slices]]:
        """Yield (windows, elements) for each tap of the kernel: X[elements] are in the windows."""
        overlaps = ([axis.overlap(k) for k in range(axis.kernel)] for axis in self.axes)
        for pairs in itertools.product(*overlaps):
            windows, elements = zip(*pairs, strict=True)
            yield (..., *windows), (..., *elements)


def windows_of(
    op: str,
    x: Shape,
    kernel_shape: Shape,
    strides: Shape | None,
    dilations: Shape | None,
    pads: Shape | None,
    auto_pad: str,
    ceil_mode: bool,
) -> Windows:
    """The windows of X (N, C, ...); None stands for ONNX's default for each axis."""
    rank = len(kernel_shape)
    if not 1 <= rank <= MAX_AXES:
        refuse(op, "kernel_shape", f"1 to {MAX_AXES} integers", f"{kernel_shape}")
    if len(x) != rank + 2:
        expected = f"batch, channels and {rank} dimensions, as kernel_shape"
        refuse(op, "X", expected, f"shape {x}")
    attributes = Attributes(op, strides=strides, dilations=dilations, pads=pads, auto_pad=auto_pad)
    axes = []
    for axis, n in zip(attributes.axes(kernel_shape), x[2:], strict=True):
        output, pad = axis.of_image(n, ceil=ceil_mode)
        end = axis.behind(n, output, pad) if auto_pad.startswith("SAME") else axis.end
        axes.append(WindowAxis(n, output, axis.kernel, axis.stride, axis.dilation, pad, end))
    if min(axis.output for axis in axes) < 1:
        expected = f"pads and extents that a window of {kernel_shape} fits into"
        refuse(op, "X", expected, f"shape {x}, pads {pads}")
    for window in axes:
        reach = (window.kernel - 1) * window.dilation
        far = max(window.pad + window.pads_end, window.output * window.stride) + reach
        if far > MAX_EXTENT:
            refuse(op, "X", "fewer than 2^31 elements along each padded axis", f"{far}")
    return Windows(x[0], x[1], tuple(axes))
