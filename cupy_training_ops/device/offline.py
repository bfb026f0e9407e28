# SPDX-License-Identifier: MIT
"""Compiling for any architecture without a GPU, and what the compiler says a kernel costs."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from types import ModuleType

from ..errors import CompileError, ProviderError
from ..plan import Device
from .compiler import has_warpgroups, header_options, nvrtc
from .source import Source

# With the KiB of shared memory that a block may ask for there (CUDA C++ Programming Guide).
ARCHITECTURES = {
    "70": 96, "75": 64, "80": 163, "86": 99, "89": 99, "90": 227, "100": 227, "120": 99,
}  # fmt: skip
MULTIPROCESSORS = 132  # of the device planned for where there is none; no plan's types depend on it

# What CuPy adds by itself, so that this compiles what runs.
_LIKE_CUPY = ("-ftz=true", "--device-as-default-execution-space", "--ptxas-options=-v")
# Beside a driver NVRTC takes what it compiled before from the driver's cache, without `ptxas -v`.
_UNCACHED, _UNCACHED_SINCE = "-no-cache", (12, 9)
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Resources:
    """Registers and memory that a kernel takes of a multiprocessor; spills are bytes a thread."""

    registers: int
    spill_nbytes: int
    shared_nbytes: int


def device(architecture: str) -> Device:
    """A GPU of this architecture, to plan for."""
    capability = (int(architecture[:-1]), int(architecture[-1]))
    nbytes = ARCHITECTURES[architecture] * 1024
    with contextlib.suppress(ProviderError):  # without NVRTC it can be planned for, too
        return Device(MULTIPROCESSORS, capability, nbytes, has_warpgroups(capability))
    return Device(MULTIPROCESSORS, capability, nbytes)


def compile_for(
    source: Source, options: tuple[str, ...], architecture: str
) -> dict[str, Resources]:
    """Compile to machine code for `sm_<architecture>`; kernel name to resources."""
    compiler = nvrtc()
    program = compiler.createProgram(source.code, f"{source.name}.cu", (), ())
    try:
        compiler.compileProgram(program, (*options, *_own_options(compiler, architecture)))
        return _resources(compiler.getProgramLog(program))
    except compiler.NVRTCError:
        log = compiler.getProgramLog(program)
        raise CompileError(
            f"{source.name}.cu did not compile for sm_{architecture} "
            f"with {' '.join(options)}:\n{log}",
            log=log,
        ) from None
    finally:
        compiler.destroyProgram(program)


def _own_options(compiler: ModuleType, architecture: str) -> tuple[str, ...]:
    uncached = (_UNCACHED,) if compiler.getVersion() >= _UNCACHED_SINCE else ()
    return (*header_options(), *_LIKE_CUPY, *uncached, f"-arch=sm_{architecture}")


def supported_architectures() -> tuple[str, ...]:
    """The architectures of ARCHITECTURES that this NVRTC compiles for."""
    known = {str(number) for number in nvrtc().getSupportedArchs()}
    return tuple(arch for arch in ARCHITECTURES if arch in known)


def _resources(log: str) -> dict[str, Resources]:
    """Read `ptxas -v`: a line naming each kernel, then one on its stack and one on its use."""
    resources: dict[str, Resources] = {}
    for section in log.split("Compiling entry function")[1:]:
        name = section.split("'")[1]
        spills, used, shared = (p.search(section) for p in (_SPILLS, _USED, _SHARED))
        resources[name] = Resources(
            int(used[1]) if used else 0,
            int(spills[2]) + int(spills[3]) if spills else 0,
            int(shared[1]) if shared else 0,
        )
    return resources
