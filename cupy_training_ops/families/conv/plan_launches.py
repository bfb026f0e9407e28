# SPDX-License-Identifier: MIT
"""Parts that plans of convolutions share: wanted arrays, totals, a bias's gradient, copies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ...declare.schema import Spec
from ...dtypes import Dtype
from ...plan import Config, Device, Launch, Plan, Scratch, ScratchMemory, ceil_div
from ...planning.fast_division import divisor
from ...planning.other_layouts import Copies
from ...rules.widening import computed_in
from .extents import Convolution, Shape
from .facts import BLOCKS, SIDE, THREADS
from .plan_variants import small_variant

SUMMERS = 8  # threads that share one sum over parts, where there are more parts than that
LINES = 64  # minimum of lines (channels of a position) that a block sums

Slots = Mapping[str, str]


@dataclass(frozen=True)
class Wanted:
    """Arrays of a call, and the results that it computes; None for others.

        image    Y = conv(X, W) + bias, or dX from dY (`is_gradient`)
        dw, db   gradients of W and of a bias, from X and dY

    x is X, y is Y or dY, w is W (None where no image is computed); a Spec has an array's shape,
    dtype and layout. A call for an image alone has the array that it reads (`source`) as x and y.
    """

    x: Spec
    y: Spec
    w: Spec | None = None
    image: Spec | None = None
    bias: Spec | None = None  # that is added to the image
    is_gradient: bool = False
    dw: Spec | None = None
    db: Spec | None = None

    @property
    def dtype(self) -> Dtype:
        """Return the dtype of all arrays."""
        return self.x.dtype

    @property
    def source(self) -> Spec:
        """Return the array that the image is computed from."""
        return self.y if self.is_gradient else self.x

    @property
    def target(self) -> Spec:
        """Return the image, of a call that computes one."""
        assert self.image is not None
        return self.image

    @property
    def sums(self) -> bool:
        """Return True if there is a sum over positions."""
        return self.dw is not None or self.db is not None

    @property
    def has_channels_last(self) -> bool:
        """Return True if an array has its channels last."""
        arrays = (self.x, self.y, self.w, self.image, self.dw)
        return any(spec is not None and spec.channels_last for spec in arrays)


def geometry(conv: Convolution) -> dict[str, Shape]:
    """Return the fields of a layout struct for X, Y and the filter's taps."""
    return {"image": conv.image, "output": conv.output, **taps(conv)}


def taps(conv: Convolution) -> dict[str, Shape]:
    """Return the fields of a layout struct for the filter's taps."""
    return {
        "kernel": conv.kernel,
        "stride": conv.strides,
        "dilation": conv.dilations,
        "pad": conv.pads,
    }


# ---- sums of parts -------------------------------------------------------------------------------


def total(sums: Scratch | None, to: Spec, parts: int, slots: Slots, each: int = 0) -> Launch:
    """Return the launch of to[i] = sums[0][i] + ... + sums[parts - 1][i]; zeros without parts.

    slots: the macros of the compilation that the kernel is in, `Variant.slots`. each: threads that
    share a sum; 0: as many as `summers` says.
    """
    each = each or summers(parts)
    config = Config((ceil_div(to.size * each, THREADS),), (THREADS,))
    return Launch("conv__total", config, (sums, to, parts, each, to.size), slots)


def summers(parts: int) -> int:
    """Return the number of threads that share one sum over parts."""
    return 1 if parts <= SUMMERS else SUMMERS


def bias_gradient(device: Device, y: Spec, bias: Spec, slots: Slots | None = None) -> Plan:
    """Plan bias[c] = sum of y[n, c, ...] over images and positions, if no other launch sums y.

    Two launches: sums of parts in scratch memory, then their total. With channels first a part is
    every parts-th image n of one channel. slots: macros of the compilation (`Variant.slots`) whose
    kernels are used; None: of `small_variant`.
    """
    slots = slots or small_variant(y.dtype).slots
    if y.channels_last:
        return _bias_gradient_channels_last(device, y, bias, slots)
    batch, channels, plane = y.shape[0], y.shape[1], math.prod(y.shape[2:])
    wanted = ceil_div(BLOCKS * device.multiprocessors * 4, channels)
    parts = min(wanted, ceil_div(batch, THREADS // 32)) if plane else 0
    if not parts:
        return Plan((total(None, bias, 0, slots),))
    scratch = ScratchMemory()
    sums = scratch.take(parts * channels, computed_in(y.dtype))
    args = (y, sums, batch, channels, parts, divisor(plane))
    step = Launch("conv__channel_sums", Config((parts * channels,), (THREADS,)), args, slots)
    return scratch.plan(step, total(sums, bias, parts, slots))


def _bias_gradient_channels_last(device: Device, y: Spec, bias: Spec, slots: Slots) -> Plan:
    """Plan bias[c] = sum of y[line, c] over lines: y is a matrix (images x positions, channels).

    A part is `lines_of_part` neighbouring lines; a block sums SIDE channels (a tile) of one part.
    slots: macros of the compilation whose kernels are used.
    """
    channels = y.shape[1]
    n_lines, tiles = y.size // channels, ceil_div(channels, SIDE)
    wanted = ceil_div(BLOCKS * device.multiprocessors * 4, tiles)
    lines_of_part = ceil_div(n_lines, min(wanted, ceil_div(n_lines, LINES)))
    parts = ceil_div(n_lines, lines_of_part)
    scratch = ScratchMemory()
    sums = scratch.take(parts * channels, computed_in(y.dtype))
    args = (y, sums, n_lines, channels, lines_of_part)
    step = Launch("conv__line_sums", Config((parts * tiles,), (THREADS,)), args, slots)
    return scratch.plan(step, total(sums, bias, parts, slots))


def copies_of(dtype: Dtype) -> Copies:
    """Return a collector of copies between channels last and C order, by conv__transpose."""
    return Copies("conv__transpose", small_variant(dtype).slots)
