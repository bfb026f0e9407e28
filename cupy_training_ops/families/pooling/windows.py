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
class Windows:
    """Window o of a plane has the elements o s - p + k d, of which those in the image count.

    o, k, s, p and d have a number for each axis. `ends` are the pads behind the image.
    """

    batch: int
    channels: int
    image: Shape
    output: Shape
    kernel: Shape
    strides: Shape
    dilations: Shape
    pads: Shape
    ends: Shape

    @property
    def y_shape(self) -> Shape:
        """The shape of Y."""
        return (self.batch, self.channels, *self.output)

    def numbers(self, storage_order: int) -> Shape:
        """By how much an element's number in its plane grows along each axis: by rows, or for 1 by
        columns."""
        axes = range(len(self.image))
        if storage_order:
            return tuple(math.prod(self.image[:axis]) for axis in axes)
        return tuple(math.prod(self.image[axis + 1 :]) for axis in axes)

    def taps(self) -> Iterator[tuple[Slices, Slices]]:
        """Yield (windows, elements) for each tap of the kernel: X[elements] are in the windows."""
        each = zip(
            *(self.image, self.output, self.kernel, self.strides, self.dilations, self.pads),
            strict=True,
        )
        axes = [
            [_overlap(image, output, stride, k * dilation - pad) for k in range(kernel)]
            for image, output, kernel, stride, dilation, pad in each
        ]
        for pairs in itertools.product(*axes):
            windows, elements = zip(*pairs, strict=True)
            yield (..., *windows), (..., *elements)


def _overlap(image: int, output: int, stride: int, offset: int) -> tuple[slice, slice]:
    """Where 0 <= o stride + offset < image."""
    first, last = max(0, -(offset // stride)), min(output - 1, (image - 1 - offset) // stride)
    if last < first:
        return slice(0, 0), slice(0, 0)
    elements = slice(first * stride + offset, last * stride + offset + 1, stride)
    return slice(first, last + 1), elements


@dataclass(frozen=True)
class Pool:
    """The attributes of a pool; None where ONNX has a default for each axis."""

    op: str
    kernel_shape: Shape
    strides: Shape | None
    dilations: Shape | None
    pads: Shape | None
    auto_pad: str
    ceil_mode: bool

    def windows(self, x: Shape) -> Windows:
        """The windows of X (N, C, ...)."""
        rank = len(self.kernel_shape)
        if not 1 <= rank <= MAX_AXES:
            refuse(self.op, "kernel_shape", f"1 to {MAX_AXES} integers", f"{self.kernel_shape}")
        if len(x) != rank + 2:
            expected = f"batch, channels and {rank} dimensions, as kernel_shape"
            refuse(self.op, "X", expected, f"shape {x}")
        windows = self._fit(x)
        self._check(x, windows)
        return windows

    def _fit(self, x: Shape) -> Windows:
        attributes = Attributes(
            self.op,
            strides=self.strides,
            dilations=self.dilations,
            pads=self.pads,
            auto_pad=self.auto_pad,
        )
        axes = attributes.axes(self.kernel_shape)
        fitted = (a.of_image(n, ceil=self.ceil_mode) for a, n in zip(axes, x[2:], strict=True))
        output, pads = zip(*fitted, strict=True)
        is_same = self.auto_pad.startswith("SAME")
        each = zip(axes, x[2:], output, pads, strict=True)
        ends = tuple(a.behind(n, o, pad) if is_same else a.end for a, n, o, pad in each)
        return Windows(
            batch=x[0],
            channels=x[1],
            image=x[2:],
            output=output,
            kernel=self.kernel_shape,
            strides=tuple(axis.stride for axis in axes),
            dilations=tuple(axis.dilation for axis in axes),
            pads=pads,
            ends=ends,
        )

    def _check(self, x: Shape, windows: Windows) -> None:
        """Refuse an output without windows, and places that are too far away."""
        if min(windows.output) < 1:
            expected = f"pads and extents that a window of {self.kernel_shape} fits into"
            refuse(self.op, "X", expected, f"shape {x}, pads {self.pads}")
        each = zip(
            *(windows.image, windows.output, windows.kernel, windows.strides),
            *(windows.dilations, windows.pads, windows.ends),
            strict=True,
        )
        for n, o, k, stride, dilation, pad, end in each:
            far = max(n + pad + end, o * stride) + (k - 1) * dilation
            if far > MAX_EXTENT:
                refuse(self.op, "X", "fewer than 2^31 elements along each padded axis", f"{far}")
