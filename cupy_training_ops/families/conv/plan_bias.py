# SPDX-License-Identifier: MIT
"""Launches of the gradient of a bias, where no launch that multiplies sums it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...declare.schema import Spec
from ...plan import Config, Device, Plan, ScratchMemory, ceil_div
from ...planning.fast_division import divisor
from ...rules.widening import computed_in
from .facts import BLOCKS, SIDE, THREADS
from .plan_launches import launch, total
from .plan_variants import small_variant

LINES = 64  # of a block that sums, at least


def bias_gradient(
    device: Device, y: Spec, bias: Spec, slots: Mapping[str, str] | None = None
) -> Plan:
    """The sum of each channel of an array (N, channels, ...), compiled with these slots."""
    slots = slots or small_variant(y.dtype).slots
    if y.channels_last:
        return _of_lines(device, y, bias, slots)
    batch, channels, plane = y.shape[0], y.shape[1], math.prod(y.shape[2:])
    wanted = ceil_div(BLOCKS * device.multiprocessors * 4, channels)
    parts = min(wanted, ceil_div(batch, THREADS // 32)) if plane else 0
    scratch = ScratchMemory()
    sums = scratch.take(parts * channels, computed_in(y.dtype)) if parts else None
    steps = [total(sums, bias, parts, slots)]
    if parts:
        args = (y, sums, batch, channels, parts, divisor(plane))
        steps.insert(
            0, launch("channel_sums", Config((parts * channels,), (THREADS,)), args, slots)
        )
    return scratch.plan(*steps)


def _of_lines(device: Device, y: Spec, bias: Spec, slots: Mapping[str, str]) -> Plan:
    """The same of an array with its channels last."""
    channels = y.shape[1]
    n_lines, tiles = y.size // channels, ceil_div(channels, SIDE)
    wanted = ceil_div(BLOCKS * device.multiprocessors * 4, tiles)
    of_part = ceil_div(n_lines, min(wanted, ceil_div(n_lines, LINES)))
    parts = ceil_div(n_lines, of_part)
    scratch = ScratchMemory()
    sums = scratch.take(parts * channels, computed_in(y.dtype))
    args = (y, sums, n_lines, channels, of_part)
    step = launch("line_sums", Config((parts * tiles,), (THREADS,)), args, slots)
    return scratch.plan(step, total(sums, bias, parts, slots))
