# SPDX-License-Identifier: MIT
"""What launches of convolutions share."""

from __future__ import annotations

from collections.abc import Mapping

from ...declare.schema import Spec
from ...plan import Config, Launch, Scratch, ceil_div
from .extents import Convolution, Shape
from .facts import THREADS

SUMMERS = 8  # threads that add up many parts of one number


def taps(conv: Convolution) -> dict[str, Shape]:
    """Fields of all layouts."""
    return {
        "kernel": conv.kernel,
        "stride": conv.strides,
        "dilation": conv.dilations,
        "pad": conv.pads,
    }


def launch(kernel: str, config: Config, args: tuple[object, ...], of: Mapping[str, str]) -> Launch:
    """Of a kernel of cuda_src/conv/conv.cu, compiled with these slots."""
    return Launch(f"conv__{kernel}", config, args, of)


def total(sums: Scratch | None, to: Spec, parts: int, of: Mapping[str, str]) -> Launch:
    """The sums of all parts."""
    each = summers(parts)
    config = Config((ceil_div(to.size * each, THREADS),), (THREADS,))
    args = (sums, to, parts, each, to.size)
    return launch("total", config, args, of)


def summers(parts: int) -> int:
    """Threads that add up the parts of one number."""
    return 1 if parts <= SUMMERS else SUMMERS
