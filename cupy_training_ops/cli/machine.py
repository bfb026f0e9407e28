# SPDX-License-Identifier: MIT
"""The machine of a command: NumPy or CuPy, by `--provider` and by whether a GPU answers."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from ..call.backends import why_no_gpu
from ..errors import ProviderError
from ..machine import processor

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


def computing(xp: Any) -> str:
    """The name of the CPU for NumPy, of the current GPU for CuPy."""
    if xp is np:
        return processor()
    runtime = xp.cuda.runtime
    name: bytes = runtime.getDeviceProperties(runtime.getDevice())["name"]
    return name.decode()
