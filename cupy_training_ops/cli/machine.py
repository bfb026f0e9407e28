# SPDX-License-Identifier: MIT
"""What a result was made on: the machine, and the versions of all that had a part in it."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from .. import __version__
from ..call.backends import cuda_backend
from ..errors import ProviderError
from ..process_group import nccl


def versions(with_cuda: bool) -> dict[str, str]:
    """This package, Python, NumPy; with CUDA also what of it answers."""
    found = {
        "cupy-training-ops": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "ml_dtypes": ml_dtypes.__version__,
    }
    return found | (_cuda_versions() if with_cuda else {})


def released(version: int) -> str:
    """CUDA's 12090 as 12.9."""
    return f"{version // 1000}.{version % 1000 // 10}"


def nccl_released(version: int) -> str:
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
    """The name of what computes: the CPU for NumPy, else the current GPU."""
    if xp is np:
        return processor()
    runtime = xp.cuda.runtime
    name: bytes = runtime.getDeviceProperties(runtime.getDevice())["name"]
    return name.decode()


def system() -> dict[str, Any]:
    """The machine beside its GPU."""
    return {"system": platform.platform(), "processor": processor(), "cores": os.cpu_count()}


def _driver_version(runtime: Any) -> int:
    """CUDA says 0 where there is none."""
    version: int = runtime.driverGetVersion()
    if not version:
        raise ProviderError("no driver")
    return version


def _cuda_versions() -> dict[str, str]:
    """A part of CUDA that is not here, or does not answer, has none."""
    try:
        cuda_backend()
    except ProviderError:
        return {}
    import cupy

    runtime = cupy.cuda.runtime
    asked: dict[str, Callable[[], str]] = {
        "cupy": lambda: str(cupy.__version__),
        "cuda runtime": lambda: released(runtime.runtimeGetVersion()),
        "cuda driver": lambda: released(_driver_version(runtime)),
        "nvrtc": lambda: ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        "nccl": lambda: nccl_released(nccl.library().get_version()),
    }
    found = {}
    for name, ask in asked.items():
        with contextlib.suppress(ImportError, OSError, RuntimeError):
            found[name] = ask()
    return found
