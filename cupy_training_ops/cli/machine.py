# SPDX-License-Identifier: MIT
"""The machine of a command: NumPy or CuPy, by `--provider` and by whether a GPU can be used."""

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
    """Return CuPy for "cuda", NumPy for "cpu"; for "auto" CuPy if a GPU can be used, else NumPy."""
    if provider == "cpu" or (provider == "auto" and why_no_gpu()):
        return np
    return require_gpu()


def require_gpu() -> Any:
    """Return CuPy; raise ProviderError if no GPU can be used."""
    reason = why_no_gpu()
    if reason:
        raise ProviderError(f"no GPU: {reason}; `cupy-training-ops doctor` says more")
    import cupy

    return cupy


def computing(xp: Any) -> str:
    """Return the name of the CPU if xp is NumPy, of the current GPU if it is CuPy."""
    if xp is np:
        return processor()
    runtime = xp.cuda.runtime
    name: bytes = runtime.getDeviceProperties(runtime.getDevice())["name"]
    return name.decode()
