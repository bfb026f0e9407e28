# SPDX-License-Identifier: MIT
"""Convolutions as extents, strides, dilations and pads, from shapes and ONNX attributes.

A transposed convolution is described by the ordinary one whose data gradient it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...errors import refuse

Shape = tuple[int, ...]

MAX_AXES = 3  # spatial dimensions
MAX_EXTENT = 2**31 - 1  # of a padded axis, so that kernels count along it in 32 bits
AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True)
class Convolution:
    """Y[n, m, o] = sum over c, k of X[n, g C/G + c, o s - p + k d] W[m, c, k], g = m // (M/G).

    o, k, s, p and d have a number for each spatial axis; X is 0 outside. X has shape (N, C, image),
    Y (N, M, output), W (M, C/G, kernel). The padding at the end of an axis follows from the output;
    the last elements of X may be unused. W has at least one element; the batch and the extents of
    image and output may be 0.
    """

    batch: int  # N
    channels: int  # C
    filters: int  # M
    group: int  # G, which divides both
    image: Shape
    output: Shape
    kernel: Shape
    strides: Shape  # at least 1
    dilations: Shape  # at least 1
    pads: Shape  # at the beginning of each axis, at least 0

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.image)

    @property
    def x_shape(self) -> Shape:
        return (self.batch, self.channels, *self.image)

    @property
    def y_shape(self) -> Shape:
        return (self.batch, self.filters, *self.output)

    @property
    def w_shape(self) -> Shape:
        return (self.filters, self.group_channels, *self.kernel)

    @property
    def group_channels(self) -> int:
        """Channels of X that a filter reads: C/G."""
        return self.channels // self.group

    @property
    def group_filters(self) -> int:
        """Filters of a group: M/G."""
        return self.filters // self.group

    def padded_to(self, rank: int) -> Convolution:
        """Return the convolution with `rank` spatial axes; new ones come first, with extent 1."""
        ones = (1,) * (rank - self.rank)
        return replace(
            self,
            image=ones + self.image,
            output=ones + self.output,
            kernel=ones + self.kernel,
            strides=ones + self.strides,
            dilations=ones + self.dilations,
            pads=(0,) * len(ones) + self.pads,
        )


@dataclass(frozen=True)
class Attributes:
    """The attributes of an operator named `op`; None where ONNX has a default for each axis.

    In its methods x and w are the shapes of X and W.

    Strides and dilations are at least 1, pads and output_padding at least 0.
    """

    op: str
    group: int = 1
    kernel_shape: Shape | None = None
    strides: Shape | None = None
    dilations: Shape | None = None
    pads: Shape | None = None  # at the beginning of all axes, then at the end
    auto_pad: str = "NOTSET"
    output_padding: Shape | None = None
    output_shape: Shape | None = None

    @classmethod
    def of(cls, op: str, values: Mapping[str, Any]) -> Attributes:
        """Make the attributes from a dict by name, without allow_tf32 and tf32x3."""
        return cls(op, **{name: v for name, v in values.items() if "tf32" not in name})

    def convolution(self, x: Shape, w: Shape) -> Convolution:
        """Return the convolution of X (N, C, I...) and W (M, C / group, K...)."""
        self._check_shapes(x, w)
        filters, channels = w[0], w[1] * self.group
        if filters % self.group:
            refuse(self.op, "W", f"filters in {self.group} equal groups", f"shape {w}")
        if x[1] != channels:
            refuse(self.op, "X", f"{channels} channels, as W and group say", f"shape {x}")
        axes = self.axes(w[2:])
        fitted = [axis.of_image(n) for axis, n in zip(axes, x[2:], strict=True)]
        self._check_fit(x, axes, [n for n, _ in fitted])
        output, pads = zip(*fitted, strict=True)
        return self._convolution(x[0], channels, filters, (x[2:], output), axes, pads)

    def transposed_convolution(self, x: Shape, w: Shape) -> Convolution:
        """Return the convolution whose data gradient is the transposed convolution of X and W.

        X (N, C, I...) is its dY, W (C, M / group, K...) its W.
        """
        self._check_shapes(x, w)
        if w[0] % self.group:
            refuse(self.op, "W", f"channels in {self.group} equal groups", f"shape {w}")
        if x[1] != w[0]:
            refuse(self.op, "X", f"{w[0]} channels, as W", f"shape {x}")
        axes = self.axes(w[2:])
        extra = self._of_axes("output_padding", self.output_padding, len(axes), 0)
        self._check_extra(axes, extra)
        wanted: tuple[int | None, ...] = (None,) * len(axes)
        if self.output_shape is not None:
            wanted = self._of_axes("output_shape", self.output_shape, len(axes), 0)
        each = zip(axes, x[2:], extra, wanted, strict=True)
        fitted = [axis.of_output(n, more, image) for axis, n, more, image in each]
        self._check_fit(x, axes, [n for n, _ in fitted])
        images, pads = zip(*fitted, strict=True)
        extents = (images, x[2:])
        return self._convolution(x[0], w[1] * self.group, w[0], extents, axes, pads)

    def _check_shapes(self, x: Shape, w: Shape) -> None:
        """Refuse ranks of X and W that do not fit each other, an empty W, another kernel_shape."""
        if not 1 <= len(x) - 2 <= MAX_AXES:
            expected = f"batch, channels and 1 to {MAX_AXES} spatial dimensions"
            refuse(self.op, "X", expected, f"shape {x}")
        if len(w) != len(x):
            refuse(self.op, "W", f"rank {len(x)}, as X", f"shape {w}")
        if math.prod(w) == 0:
            refuse(self.op, "W", "extents of at least 1", f"shape {w}")
        if self.kernel_shape not in (None, w[2:]):
            refuse(self.op, "kernel_shape", f"{w[2:]}, as W", f"{self.kernel_shape}")

    def axes(self, kernel: Shape) -> list[Axis]:
        """Return the axes for a kernel of these spatial extents; refuse unequal attributes."""
        n = len(kernel)
        strides = self._of_axes("strides", self.strides, n, 1)
        dilations = self._of_axes("dilations", self.dilations, n, 1)
        pads = self._of_axes("pads", self.pads, 2 * n, 0)
        if self.auto_pad != "NOTSET" and any(pads):
            refuse(self.op, "pads", f"none beside auto_pad {self.auto_pad}", f"{pads}")
        each = zip(kernel, strides, dilations, pads[:n], pads[n:], strict=True)
        return [Axis(self.auto_pad, *numbers) for numbers in each]

    def _of_axes(self, name: str, values: Shape | None, n: int, default: int) -> Shape:
        """Return an attribute of n integers, or n defaults; refuse another number of them."""
        if values is not None and len(values) != n:
            refuse(self.op, name, f"{n} integer{'s' if n > 1 else ''}", f"{values}")
        return (default,) * n if values is None else values

    def _check_extra(self, axes: list[Axis], extra: Shape) -> None:
        """Refuse an output_padding, `extra` for each axis, of a stride and dilation or more."""
        if any(n >= max(axis.stride, axis.dilation) for axis, n in zip(axes, extra, strict=True)):
            expected = "less than stride or dilation along each axis"
            refuse(self.op, "output_padding", expected, f"{extra}")

    def _check_fit(self, x: Shape, axes: list[Axis], extents: list[int]) -> None:
        """Refuse a kernel that is larger than the padded input: a negative extent.

        x: shape of X. axes: have the kernel. extents: of the result.
        """
        if min(extents) < 0:
            reach = tuple(axis.reach for axis in axes)
            expected = f"pads and extents that a kernel over {reach} elements fits into"
            refuse(self.op, "X", expected, f"shape {x}, pads {self.pads}")

    def _convolution(
        self,
        batch: int,
        channels: int,
        filters: int,
        extents: tuple[Shape, Shape],
        axes: list[Axis],
        pads: Shape,
    ) -> Convolution:
        """Return the convolution with extents (image, output); refuse 2^31 padded elements.

        axes have its kernel, strides, dilations; pads: before the image, along each axis.
        """
        for axis, image, output, pad in zip(axes, *extents, pads, strict=True):
            end = max(image + pad, output * axis.stride) + axis.reach - 1
            if end > MAX_EXTENT:
                refuse(self.op, "X", "fewer than 2^31 elements along each padded axis", f"{end}")
        return Convolution(
            batch,
            channels,
            filters,
            self.group,
            *extents,
            kernel=tuple(axis.kernel for axis in axes),
            strides=tuple(axis.stride for axis in axes),
            dilations=tuple(axis.dilation for axis in axes),
            pads=pads,
        )


@dataclass(frozen=True)
class Axis:
    """One spatial axis of an operator, before the extents of its image and output are known."""

    auto_pad: str
    kernel: int
    stride: int
    dilation: int
    begin: int  # explicit pad before the image
    end: int  # and behind it

    @property
    def reach(self) -> int:
        """Return the extent of the dilated kernel: (kernel - 1) * dilation + 1."""
        return (self.kernel - 1) * self.dilation + 1

    def of_image(self, image: int, *, ceil: bool = False) -> tuple[int, int]:
        """Return (extent of the output, pad before the image); -1 if the kernel does not fit.

        With `ceil` the last place of the kernel may end beyond the pads, if it begins before them.
        """
        if self.auto_pad.startswith("SAME"):
            output = -(-image // self.stride)
            return output, self._first_part(self.behind(image, output, 0))
        room = image + self.begin + self.end - self.reach
        if ceil:
            places = -(-room // self.stride) + 1  # one less if the last begins behind the image
            return places - ((places - 1) * self.stride >= image + self.begin), self.begin
        return (room // self.stride + 1 if room >= 0 else -1), self.begin

    def behind(self, image: int, output: int, pad: int) -> int:
        """Return the pad after an image that `output` places need, with `pad` before it."""
        return max(0, (output - 1) * self.stride + self.reach - image - pad)

    def of_output(self, output: int, extra: int, image: int | None) -> tuple[int, int]:
        """Return (extent of the image, pad before it); it is negative if the kernel does not fit.

        extra: output_padding. image: the extent that output_shape demands, or None.
        """
        whole = self.stride * (output - 1) + self.reach + extra
        if image is None and self.auto_pad.startswith("SAME"):
            image = output * self.stride
        if image is None:
            return whole - self.begin - self.end, self.begin
        return image, self._first_part(max(0, whole - image))

    def _first_part(self, pads: int) -> int:
        """Return the part of `pads` at the beginning: the larger half, the smaller for SAME_UPPER.

        Pads that follow from output_shape are divided like this without auto_pad, too.
        """
        return pads // 2 if self.auto_pad == "SAME_UPPER" else pads - pads // 2
