# SPDX-License-Identifier: MIT
"""One memo: (backend, source, slots, symbol, device) to a kernel that is ready to launch."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ..backend import Backend, Kernel
from ..errors import CompileError
from ..forks import Locked
from .kernel_cache import importing
from .source import Source

LANGUAGE = "--std=c++17"
# A slot that, as 1, has a module compiled for 9.0 with instructions that no other architecture has.
# CuPy's own option follows, and does not take them back; NVRTC before 12.9 refuses two.
WARPGROUPS = "WARPGROUPS"
_HAS_WARPGROUPS, _WITH_WARPGROUPS, _OF_CUPY = (9, 0), "-arch=sm_90a", "-arch=sm_90"
_BY_THREADS = "--split-compile=8"
_ASKS_FOR_WARPGROUPS = """
#ifndef __CUDA_ARCH_FEAT_SM90_ALL
#error
#endif
"""
_CUDART_VERSION = re.compile(r"#define\s+CUDART_VERSION\s+(\d+)")


_memo: dict[tuple[Any, ...], Any] = {}
_shared = Locked()
_ahead = Locked()  # has the thread that compiles for others; nobody waits for it


def kernel(
    backend: Backend,
    source: Source,
    slots: Mapping[str, str],
    symbol: str,
    device: int,
    shared_nbytes: int = 0,
) -> Kernel:
    """The compiled kernel `symbol`, compiled at most once in a process for each device.

    The first launch with dynamic shared memory raises what it may have: together with the kernel's
    static memory it may be more than every GPU gives.
    """
    if symbol not in source.kernels:
        raise CompileError(f"{source.name}.cu defines no kernel {symbol}")
    options = slot_options(slots)
    with _shared.lock:
        module_key = (backend, source.name, source.code, options, device)
        module = _memo.get(module_key) or backend.load(source, options)
        _memo[module_key] = module
        asks = shared_nbytes > 0
        key = (*module_key, symbol, asks)
        if key not in _memo:
            function = module.get_function(symbol)
            if asks:
                module.allow_shared(function, backend.device(device).max_shared_nbytes)
            _memo[key] = function
        return _memo[key]  # type: ignore[no-any-return]


def compile_ahead(
    backend: Backend, wanted: Iterable[tuple[Source, Mapping[str, str]]], device: int
) -> None:
    """Compile those of several modules that are new, each in a thread of its own.

    The compiler needs neither Python's lock nor a turn. What fails, or finds another thread at it,
    is left to `kernel`, which says why; so is all in a capture, whose mode may be one that forbids
    other threads to load.
    """
    if not backend.loads_at_once or not _ahead.lock.acquire(blocking=False):
        return
    try:
        given = ((source, slot_options(slots)) for source, slots in wanted)
        keys = {(backend, s.name, s.code, options, device): (s, options) for s, options in given}
        new = [(key, *what) for key, what in keys.items() if key not in _memo]
        if len(new) > 1 and not backend.capturing(device):
            _load_at_once(backend, new, device)
    finally:
        _ahead.lock.release()


def _load_at_once(
    backend: Backend, new: list[tuple[tuple[Any, ...], Source, tuple[str, ...]]], device: int
) -> None:
    def load(key: tuple[Any, ...], source: Source, options: tuple[str, ...]) -> None:
        with contextlib.suppress(Exception), backend.on(device):
            _memo.setdefault(key, backend.load(source, options))

    threads = [threading.Thread(target=load, args=one) for one in new]
    with contextlib.suppress(RuntimeError):  # an interpreter that ends starts none
        for thread in threads:
            thread.start()
    for thread in threads:
        if thread.ident is not None:
            thread.join()


def slot_options(slots: Mapping[str, str]) -> tuple[str, ...]:
    """Compiler options of a slot binding: {"T": "__half"} is -DCTO_T=__half."""
    defines = tuple(f"-DCTO_{name}={value}" for name, value in sorted(slots.items()))
    own = (_WITH_WARPGROUPS,) if slots.get(WARPGROUPS) == "1" else ()
    return (LANGUAGE, *defines, *own)


def has_warpgroups(capability: tuple[int, int]) -> bool:
    """Return True if modules with WARPGROUPS can be compiled, and run there."""
    return capability == _HAS_WARPGROUPS and _compiles_warpgroups()


@functools.cache
def _compiles_warpgroups() -> bool:
    """Return True if NVRTC takes the two options: versions differ, so that it is asked."""
    return _compiles(_ASKS_FOR_WARPGROUPS, (_WITH_WARPGROUPS, _OF_CUPY))


@functools.cache
def thread_options() -> tuple[str, ...]:
    """Options by which a module's kernels are compiled by threads, where NVRTC can."""
    return (_BY_THREADS,) if _compiles("", (_BY_THREADS,)) else ()


def _compiles(code: str, options: tuple[str, ...]) -> bool:
    compiler = nvrtc()
    program = compiler.createProgram(code, "asks.cu", (), ())
    try:
        compiler.compileProgram(program, options)
    except compiler.NVRTCError:
        return False
    finally:
        compiler.destroyProgram(program)
    return True


@functools.cache
def header_options() -> tuple[str, ...]:
    """Include options for NVIDIA's own headers (cuda_fp16.h, cuda_bf16.h)."""
    folder = header_folder()
    if folder is None:
        major = _nvrtc_major()
        raise CompileError(
            f"headers of CUDA {major} (cuda_fp16.h) not found; "
            f"install them with: pip install {_header_package(major)}"
        )
    return (f"-I{folder}",)


@functools.cache
def header_folder() -> str | None:
    """The folder of cuda_fp16.h: a component wheel, a toolkit, or CUDA_PATH.

    The first of the CUDA major version that compiles: several may be installed.
    """
    major = _nvrtc_major()
    candidates = [*_wheel_folders(major), _pathfinder_folder(), *_toolkit_folders()]
    folders = (c for c in candidates if c and os.path.isfile(os.path.join(c, "cuda_fp16.h")))
    return next((c for c in folders if _header_major(c) in (major, None)), None)


def nvrtc() -> ModuleType:
    """CuPy's binding of the NVRTC that compiles."""
    with importing("NVRTC"):
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()  # which imports CuPy
    binding: ModuleType = nvrtc
    return binding


def _nvrtc_major() -> int:
    return nvrtc().getVersion()[0]  # type: ignore[no-any-return]


def _header_package(major: int) -> str:
    return f"nvidia-cuda-runtime-cu{major}" if major < 13 else f"nvidia-cuda-runtime=={major}.*"


def _header_major(folder: str) -> int | None:
    """The CUDA major version of the headers in a folder; None where they do not say."""
    with contextlib.suppress(OSError):
        text = Path(folder, "cuda_runtime_api.h").read_text(encoding="utf-8", errors="replace")
        version = _CUDART_VERSION.search(text)
        return int(version[1]) // 1000 if version else None
    return None


def _wheel_folders(major: int) -> list[str]:
    """Where NVIDIA's wheels of that version put headers: pathfinder names one of all versions."""
    component = "cuda_runtime" if major < 13 else f"cu{major}"
    return [os.path.join(root, component, "include") for root in _wheel_roots()]


def _wheel_roots() -> list[str]:
    """The folders of the namespace package `nvidia`."""
    spec = importlib.util.find_spec("nvidia")
    return list(spec.submodule_search_locations or ()) if spec else []


def _pathfinder_folder() -> str | None:
    from cuda import pathfinder  # comes with CuPy

    folder = pathfinder.find_nvidia_header_directory("cudart")
    return None if folder is None else str(folder)


def _toolkit_folders() -> list[str]:
    roots = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    return [os.path.join(root, "include") for root in roots if root]
