# SPDX-License-Identifier: MIT
"""This machine: its GPU, if one answers, its names, and the versions of all that computes."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from . import __version__
from .call.backends import cuda_backend, why_no_gpu
from .errors import ProviderError, printable
from .process_group import nccl
from .registry import providers

OTHERS = ("torch", "triton", "onnx", "safetensors", "mpi4py")  # packages that calls may use
SETTINGS = ("CTO_", "CUDA_", "CUPY_")  # beginnings of names in the environment


def versions(with_cuda: bool) -> dict[str, str]:
    """Return {name: version} of this package, Python, NumPy, ml_dtypes; with_cuda: also of CUDA."""
    result = {
        "cupy-training-ops": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "ml_dtypes": ml_dtypes.__version__,
    }
    return result | (_cuda_versions() if with_cuda else {})


def version_text(version: int) -> str:
    """Return CUDA's version 12090 as "12.9"."""
    return f"{version // 1000}.{version % 1000 // 10}"


def nccl_version_text(version: int) -> str:
    """Return NCCL's version 22703 as "2.27.3"."""
    return f"{version // 10_000}.{version // 100 % 100}.{version % 100}"


@functools.cache
def processor() -> str:
    """Return the name of the CPU."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def system() -> dict[str, Any]:
    """Return {"system": operating system, "processor": CPU, "cores": their number}."""
    return {"system": platform.platform(), "processor": processor(), "cores": os.cpu_count()}


def _driver_version(runtime: Any) -> int:
    """Return the version of CUDA's driver, as 12090; ProviderError for 0, which means none."""
    version: int = runtime.driverGetVersion()
    if not version:
        raise ProviderError("no driver")
    return version


def _cuda_versions() -> dict[str, str]:
    """Return {name: version} of CuPy, CUDA, NVRTC and NCCL, without those that cannot be loaded."""
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


def gpus() -> list[str]:
    """Return name, architecture and memory of each GPU that CUDA finds."""
    if why_no_gpu():
        return []
    from cupy.cuda import runtime

    devices = map(runtime.getDeviceProperties, range(runtime.getDeviceCount()))
    return [
        f"{d['name'].decode()} (sm_{d['major']}{d['minor']}, {d['totalGlobalMem'] >> 30} GiB)"
        for d in devices
    ]


def show_versions() -> None:
    """Print what a report of a fault needs: versions, machine, providers, settings.

    Versions of this package, Python, NumPy, CuPy, CUDA and its driver, NVRTC, NCCL, PyTorch and
    other packages that calls may use; operating system, CPU, GPUs; why a provider cannot run here;
    variables of the environment that begin with CTO_, CUDA_ or CUPY_. PyTorch is not imported.
    """
    rows = versions(with_cuda=True)
    for name in OTHERS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            rows[name] = metadata.version(name)
    rows |= {name: str(value) for name, value in system().items()}
    rows |= {f"GPU {i}": text for i, text in enumerate(gpus())}
    rows |= {f"provider {name}": why or "can run" for name, why in providers().items()}
    rows |= {k: os.environ[k] for k in sorted(os.environ) if k.startswith(SETTINGS)}
    width = max(map(len, rows))
    for name, text in rows.items():
        print(f"{name:{width}}  {printable(text)}")  # noqa: T201
