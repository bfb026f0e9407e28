# SPDX-License-Identifier: MIT
"""Launches that several plans share: sums of parts, the gradient of a bias, copies of layouts."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...declare.schema import Spec
from ...dtypes import Dtype
from ...plan import Config, Device, Launch, Plan, Scratch, ScratchMemory, ceil_div
from ...planning.fast_division import divisor
from ...planning.other_layouts import Copies
from ...rules.widening import computed_in
from .extents import Convolution, Shape
from .facts import BLOCKS, SIDE, THREADS
from .plan_variants import small_variant

SUMMERS = 8  # threads that add up many parts of one number
LINES = 64  # of a block that sums, at least

Slots = Mapping[str, str]


def geometry(conv: Convolution) -> dict[str, Shape]:
    """Fields of layouts that say what X and Y are."""
    return {"image": conv.image, "output": conv.output, **taps(conv)}


def taps(conv: Convolution) -> dict[str, Shape]:
    """Fields of all layouts."""
    return {
        "kernel": conv.kernel,
        "stride": conv.strides,
        "dilation": conv.dilations,
        "pad": conv.pads,
    }


# ---- sums of parts -------------------------------------------------------------------------------


def total(sums: Scratch | None, to: Spec, parts: int, slots: Slots) -> Launch:
    """The sums of all parts."""
    each = summers(parts)
    config = Config((ceil_div(to.size * each, THREADS),), (THREADS,))
    return Launch("conv__total", config, (sums, to, parts, each, to.size), slots)


def summers(parts: int) -> int:
    """Threads that add up the parts of one number."""
    return 1 if parts <= SUMMERS else SUMMERS


def bias_gradient(device: Device, y: Spec, bias: Spec, slots: Slots | None = None) -> Plan:
    """The sum of each channel of an array (N, channels, ...), where no other launch sums it."""
    slots = slots or small_variant(y.dtype).slots
    if y.channels_last:
        return _sums_of_lines(device, y, bias, slots)
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


def _sums_of_lines(device: Device, y: Spec, bias: Spec, slots: Slots) -> Plan:
    """Sums over the lines of an array with its channels last."""
    channels = y.shape[1]
    n_lines, tiles = y.size // channels, ceil_div(channels, SIDE)
    wanted = ceil_div(BLOCKS * device.multiprocessors * 4, tiles)
    of_part = ceil_div(n_lines, min(wanted, ceil_div(n_lines, LINES)))
    parts = ceil_div(n_lines, of_part)
    scratch = ScratchMemory()
    sums = scratch.take(parts * channels, computed_in(y.dtype))
    args = (y, sums, n_lines, channels, of_part)
    step = Launch("conv__line_sums", Config((parts * tiles,), (THREADS,)), args, slots)
    return scratch.plan(step, total(sums, bias, parts, slots))


# ---- layouts -------------------------------------------------------------------------------------


def have_channels_last(*arrays: Spec | None) -> bool:
    """Return True if an array has its channels last."""
    return any(spec is not None and spec.channels_last for spec in arrays)


def copies_of(dtype: Dtype) -> Copies:
    """Copies of arrays that kernels do not read or write as they lie."""
    return Copies("conv__transpose", small_variant(dtype).slots)
