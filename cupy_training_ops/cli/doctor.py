# SPDX-License-Identifier: MIT
"""`doctor`: examines the parts of a CUDA installation; names commands that mend missing ones."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import click

from ..call.backends import NO_DEVICE, cuda_backend, why_no_gpu
from ..device import compiler
from ..device.compiler import header_folder, supported_architectures
from ..errors import OpError, ProviderError
from ..machine import gpus, nccl_version_text, processor, version_text
from ..process_group import nccl
from .errors import CHECK_FAILED
from .terminal import JsonLines, align, json_option

INSTALL_DRIVER = (
    "sudo ubuntu-drivers install (or your distribution's NVIDIA driver; a container: --gpus all)"
)
NEWER_DRIVER = (
    "install a newer driver: sudo ubuntu-drivers install (or your distribution's; a container has "
    "its host's)"
)
OLDEST_DRIVER = 12_000  # CUDA version that it runs, 12.0: there is no extra for CUDA 11


class Finding(NamedTuple):
    """Result of examining a part of the installation."""

    text: str  # version or name, or the error
    mend: str = ""  # command that installs or mends it; "" if it works
    required: bool = True  # False: only some operators need it

    @property
    def state(self) -> str:
        """The word of the table: "ok", "missing", or "optional" for a missing one not required."""
        return "ok" if not self.mend else "missing" if self.required else "optional"


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Say what is here, what is missing, and what mends it.

    Looks at GPU, driver, CuPy, NVRTC, headers, NCCL and cache.

    Exit code 1 if something needed is missing. NCCL is needed by the collective operators only.
    """
    findings = {name: examine() for name, examine in EXAMINATIONS.items()}
    (_print_json if as_json else _print)(findings)
    if any(finding.state == "missing" for finding in findings.values()):
        raise click.exceptions.Exit(CHECK_FAILED)


def _print_json(findings: Mapping[str, Finding]) -> None:
    """Print a JSON object for each part."""
    gpu = findings["GPU"]
    lines = JsonLines("doctor", processor() if gpu.mend else gpu.text, with_cuda=True)
    for name, finding in findings.items():
        about = {"state": finding.state, "found": finding.text, "mend": finding.mend or None}
        lines.write("part", part=name, **about)


def _print(findings: Mapping[str, Finding]) -> None:
    """Print a table of findings, then each command with the parts that it mends."""
    for line in align([(name, f.state, f.text) for name, f in findings.items()], left=3):
        click.echo(line)
    for mend in dict.fromkeys(f.mend for f in findings.values() if f.mend):
        mended = ", ".join(name for name, f in findings.items() if f.mend == mend)
        click.echo(f"to mend {mended}: {mend}")


def _gpu() -> Finding:
    """Name the GPUs, or say why none can be used."""
    reason = why_no_gpu()
    if reason:
        return Finding(_without_advice(reason), _gpu_mend(reason))
    return Finding("; ".join(gpus()))


def _gpu_mend(reason: str) -> str:
    """Return the command for a missing GPU: that of the driver, else CuPy's, else to show the GPU
    to the process.

    reason: of `why_no_gpu`.
    """
    hidden = reason == NO_DEVICE and "CUDA_VISIBLE_DEVICES" in os.environ
    here = "unset CUDA_VISIBLE_DEVICES" if hidden else INSTALL_DRIVER
    return _driver().mend or _cupy().mend or here


def _driver() -> Finding:
    """Name the newest CUDA version that the driver runs; a driver before 12.0 is to be replaced."""
    version = driver_version()
    if version is None:
        return Finding("libcuda.so.1 is not here", INSTALL_DRIVER)
    text = f"runs CUDA up to {version_text(version)}"
    if version < OLDEST_DRIVER:
        return Finding(f"{text}, {version_text(OLDEST_DRIVER)} is needed", NEWER_DRIVER)
    return Finding(text)


def _cupy() -> Finding:
    """Name CuPy's version and its CUDA version, whose major must not be above the driver's."""
    try:
        cuda_backend()
    except ProviderError as error:
        return Finding(_without_advice(error), _mend(error, _install()))
    import cupy

    version = cupy.cuda.runtime.runtimeGetVersion()
    text = f"{cupy.__version__} for CUDA {version_text(version)}"
    if (driver_version() or version) // 1000 < version // 1000:
        return Finding(f"{text}, newer than the driver", _driver().mend or _install())
    return Finding(text)


def _nvrtc() -> Finding:
    """Name the architectures that NVRTC, the compiler of kernels, knows."""
    try:
        known = ", ".join(f"sm_{number}" for number in supported_architectures())
    except OpError as error:
        return Finding(_without_advice(error), _mend(error, _install()))
    return Finding(f"compiles for {known}")


def _headers() -> Finding:
    """Name the folder of CUDA's headers, which kernels include."""
    try:
        folder = header_folder()
    except (ImportError, OpError) as error:  # cuda.pathfinder and NVRTC's binding come with CuPy
        return Finding(_without_advice(error), _mend(error, _install()))
    return Finding(folder) if folder else Finding("cuda_fp16.h is not here", _install())


def _nccl() -> Finding:
    """Name NCCL's version; it is not required."""
    mend = f"pip install 'cupy-training-ops[nccl{_cuda_major()}]'"
    try:
        cuda_backend()
        version = nccl.library().get_version()
    except (ImportError, ProviderError) as error:
        return Finding(_without_advice(error), _mend(error, mend), required=False)
    return Finding(f"version {nccl_version_text(version)}")


def _ranks() -> Finding:
    """List the libraries that can carry messages between ranks; nothing is loaded."""
    others = {"torch": "torch (torchrun)", "mpi4py": "MPI (mpirun, srun)"}
    here = [text for name, text in others.items() if importlib.util.find_spec(name)]
    return Finding(", ".join(["embedded (launch)", *here]))


def _cache() -> Finding:
    """Name the folder of compiled kernels, with its number of files and size."""
    try:
        compiler.require_writable_cache()
    except ProviderError as error:
        return Finding(_without_advice(error), compiler.CACHE_REMEDY)
    folder = Path(compiler.cache_folder())
    files = [path for path in folder.glob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 2**20
    return Finding(f"{folder}, {len(files)} files, {size:.1f} MiB")


# By the part of the installation, the function that examines it.
EXAMINATIONS: dict[str, Callable[[], Finding]] = {
    "GPU": _gpu,
    "driver": _driver,
    "CuPy": _cupy,
    "NVRTC": _nvrtc,
    "headers": _headers,
    "NCCL": _nccl,
    "ranks": _ranks,
    "cache": _cache,
}


@functools.cache
def driver_version() -> int | None:
    """Return the newest CUDA version that the driver runs, 12090 for 12.9; None without one."""
    version = ctypes.c_int()
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except OSError:
        return None
    return version.value


def _install() -> str:
    """Return the command that installs CuPy, NVRTC and headers for the driver's CUDA version."""
    return f"pip install 'cupy-training-ops[cuda{_cuda_major()}x]'"


def _mend(error: Exception, otherwise: str) -> str:
    """Return the command that mends an error of CuPy: for one of its cache, else `otherwise`."""
    return compiler.CACHE_REMEDY if compiler.CACHE_REMEDY in str(error) else otherwise


def _without_advice(reason: object) -> str:
    """Return an error's text up to its advice, which does not know the driver's CUDA version."""
    return re.split("; (install it|name another folder) with: ", str(reason))[0]


def _cuda_major() -> int:
    """Return the major version of CUDA to install: 13 if the driver runs it, else 12."""
    return 13 if (driver_version() or 0) >= 13_000 else 12
