# SPDX-License-Identifier: MIT
"""What launches of convolutions share."""

from __future__ import annotations

from ...declare.schema import Spec
from ...dtypes import Dtype
from ...plan import Config, Device, Launch, Scratch, ceil_div
from .extents import Convolution, Shape
from .facts import THREADS
from .plan_variants import small_variant

SUMMERS = 8  # threads that add up many parts of one number


def taps(conv: Convolution) -> dict[str, Shape]:
    """Fields of all layouts."""
    return {
        "kernel": conv.kernel,
        "stride": conv.strides,
        "dilation": conv.dilations,
        "pad": conv.pads,
    }


def launch(kernel: str, config: Config, args: tuple[object, ...], of: dict[str, str]) -> Launch:
    """Of a kernel of cuda_src/conv/conv.cu, compiled with these slots."""
    return Launch(f"conv__{kernel}", config, args, of)


def total(device: Device, dtype: Dtype, sums: Scratch | None, to: Spec, parts: int) -> Launch:
    """The sums of all parts."""
    each = summers(parts)
    config = Config((ceil_div(to.size * each, THREADS),), (THREADS,))
    args = (sums, to, parts, each, to.size)
    return launch("total", config, args, small_variant(device, dtype).slots)


def summers(parts: int) -> int:
    """Threads that add up the parts of one number."""
    return 1 if parts <= SUMMERS else SUMMERS
