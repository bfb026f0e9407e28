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
    """One axis: window o (of `output`) has elements o stride - pad + k dilation, 0 <= k < kernel.

    image: elements of X, numbered from 0. pad, end: pads before and behind them.
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
        """Return where the pads behind X end, counted from its first element."""
        return self.image + self.end

    def overlap(self, k: int) -> tuple[slice, slice]:
        """Return slices of the windows whose element k lies in X, and of these elements of X."""
        offset = k * self.dilation - self.pad
        # The first o with o stride + offset >= 0, and the last with it < image.
        first = max(0, -(offset // self.stride))
        last = min(self.output - 1, (self.image - 1 - offset) // self.stride)
        if last < first:
            return slice(0, 0), slice(0, 0)
        elements = slice(first * self.stride + offset, last * self.stride + offset + 1, self.stride)
        return slice(first, last + 1), elements


@dataclass(frozen=True)
class Windows:
    """The windows of a pool of X (batch, channels, ...); axes: the 1 to 3 behind channels."""

    batch: int
    channels: int
    axes: tuple[WindowAxis, ...]

    @property
    def image(self) -> Shape:
        """Return the extents of a plane of X."""
        return tuple(axis.image for axis in self.axes)

    @property
    def output(self) -> Shape:
        """Return the extents of a plane of Y."""
        return tuple(axis.output for axis in self.axes)

    @property
    def y_shape(self) -> Shape:
        """Return the shape of Y."""
        return (self.batch, self.channels, *self.output)

    def numbers(self, storage_order: int) -> Shape:
        """Return by how much an element's number in its plane grows along each axis.

        storage_order: 0 numbers along the last axis first (strides of C), 1 along the first one.
        """
        image, axes = self.image, range(len(self.axes))
        if storage_order:
            return tuple(math.prod(image[:axis]) for axis in axes)
        return tuple(math.prod(image[axis + 1 :]) for axis in axes)

    def taps(self) -> Iterator[tuple[Slices, Slices]]:
        """Yield indices (windows, elements) for each place k in the kernel.

        X[elements] is element k of the windows of Y[windows], so that a maximum is
        maximum(Y[windows], X[elements]) over all k.
        """
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
    """Return the windows of an X of shape x = (N, C, ...); kernel_shape: elements of a window.

    op: name for errors. strides, dilations, pads (all at the beginning, then at the end) are for
    each axis; None: 1, 1 and 0. auto_pad: ONNX's rule for pads ("NOTSET": `pads`). ceil_mode: a
    last window may reach beyond the pads.
    """
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
