# SPDX-License-Identifier: MIT
"""Where a command computes: the GPU if there is one, else the CPU, unless it is told."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from ..call.backends import cuda_backend
from ..errors import ProviderError

NO_DEVICE = "CUDA finds no device"

provider_option = click.option(
    "--provider",
    type=click.Choice(["auto", "cuda", "cpu"]),
    default="auto",
    show_default=True,
    help="Where to compute; auto is cuda where a GPU can be used, else cpu.",
)


def array_library(provider: str) -> Any:
    """CuPy for "cuda", NumPy for "cpu", the one of the two that works here for "auto"."""
    if provider == "cpu" or (provider == "auto" and why_no_gpu()):
        return np
    return require_gpu()


def require_gpu() -> Any:
    """CuPy on a GPU that answers."""
    reason = why_no_gpu()
    if reason:
        raise ProviderError(f"no GPU: {reason}; `cupy-training-ops doctor` says more")
    import cupy

    return cupy


def why_no_gpu() -> str | None:
    """What stands between this process and a GPU, or None."""
    try:
        cuda_backend()
    except ProviderError as error:
        return str(error)
    from cupy.cuda import runtime

    try:
        return None if runtime.getDeviceCount() else NO_DEVICE
    except runtime.CUDARuntimeError as error:
        return NO_DEVICE if "cudaErrorNoDevice" in str(error) else str(error)
