# SPDX-License-Identifier: MIT
"""This machine: its GPU, if one answers, its names, and the versions of all that computes."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import ml_dtypes
import numpy as np

from .. import __version__
from ..call.backends import cuda_backend
from ..errors import ProviderError
from ..process_group import nccl

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
    """The reason why this process has no GPU, or None."""
    try:
        cuda_backend()
    except ProviderError as error:
        return str(error)
    from cupy.cuda import runtime

    try:
        return None if runtime.getDeviceCount() else NO_DEVICE
    except runtime.CUDARuntimeError as error:
        return NO_DEVICE if "cudaErrorNoDevice" in str(error) else str(error)


def versions(with_cuda: bool) -> dict[str, str]:
    """Versions by name: this package, Python, NumPy; with CUDA those of its parts that answer."""
    result = {
        "cupy-training-ops": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "ml_dtypes": ml_dtypes.__version__,
    }
    return result | (_cuda_versions() if with_cuda else {})


def version_text(version: int) -> str:
    """CUDA's 12090 as 12.9."""
    return f"{version // 1000}.{version % 1000 // 10}"


def nccl_version_text(version: int) -> str:
    """NCCL's 22703 as 2.27.3."""
    return f"{version // 10_000}.{version // 100 % 100}.{version % 100}"


@functools.cache
def processor() -> str:
    """The name of the CPU."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def computing(xp: Any) -> str:
    """The name of the CPU for NumPy, of the current GPU for CuPy."""
    if xp is np:
        return processor()
    runtime = xp.cuda.runtime
    name: bytes = runtime.getDeviceProperties(runtime.getDevice())["name"]
    return name.decode()


def system() -> dict[str, Any]:
    """Operating system, CPU and cores."""
    return {"system": platform.platform(), "processor": processor(), "cores": os.cpu_count()}


def _driver_version(runtime: Any) -> int:
    """The driver's version; ProviderError where there is none, of which CUDA says 0."""
    version: int = runtime.driverGetVersion()
    if not version:
        raise ProviderError("no driver")
    return version


def _cuda_versions() -> dict[str, str]:
    """Versions of the parts of CUDA that are here and answer."""
    try:
        cuda_backend()
    except ProviderError:
        return {}
    import cupy

    runtime = cupy.cuda.runtime
    asked: dict[str, Callable[[], str]] = {
        "cupy": lambda: str(cupy.__version__),
        "cuda runtime": lambda: version_text(runtime.runtimeGetVersion()),
        "cuda driver": lambda: version_text(_driver_version(runtime)),
        "nvrtc": lambda: ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        "nccl": lambda: nccl_version_text(nccl.library().get_version()),
    }
    answers = {}
    for name, ask in asked.items():
        with contextlib.suppress(ImportError, OSError, RuntimeError):
            answers[name] = ask()
    return answers
