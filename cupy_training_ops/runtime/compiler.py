# SPDX-License-Identifier: MIT
"""One memo: (backend, source, slots, symbol, device) to a kernel that is ready to launch."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..backend import Backend, Kernel
from ..errors import CompileError
from ..plan import SHARED_NBYTES
from .source import Source

LANGUAGE = "--std=c++17"


_memo: dict[tuple[Any, ...], Any] = {}
_lock = threading.Lock()


def kernel(
    backend: Backend,
    source: Source,
    slots: Mapping[str, str],
    symbol: str,
    device: int,
    shared_nbytes: int = 0,
) -> Kernel:
    """The compiled kernel `symbol`, compiled at most once in a process for each device.

    The first launch with more dynamic shared memory than every GPU gives raises what it may have.
    """
    if symbol not in source.kernels:
        raise CompileError(f"{source.name}.cu defines no kernel {symbol}")
    options = slot_options(slots)
    with _lock:
        module_key = (backend, source.name, source.code, options, device)
        module = _memo.get(module_key) or backend.load(source, options)
        _memo[module_key] = module
        more = shared_nbytes > SHARED_NBYTES
        key = (*module_key, symbol, more)
        if key not in _memo:
            _memo[key] = module.get_function(symbol)
            if more:
                module.allow_shared(symbol, backend.device(device).max_shared_nbytes)
        return _memo[key]  # type: ignore[no-any-return]


def slot_options(slots: Mapping[str, str]) -> tuple[str, ...]:
    """Compiler options of a slot binding: {"T": "__half"} is -DCTO_T=__half."""
    defines = tuple(f"-DCTO_{name}={value}" for name, value in sorted(slots.items()))
    return (LANGUAGE, *defines)


@functools.cache
def header_options() -> tuple[str, ...]:
    """Include options for NVIDIA's own headers (cuda_fp16.h, cuda_bf16.h)."""
    folder = header_folder()
    if folder is None:
        raise CompileError(
            "CUDA headers (cuda_fp16.h) not found; "
            "install them with: pip install nvidia-cuda-runtime-cu12"
        )
    return (f"-I{folder}",)


@functools.cache
def header_folder() -> str | None:
    """The folder of cuda_fp16.h: a component wheel, a toolkit, or CUDA_PATH."""
    candidates = [_pathfinder_folder(), *_toolkit_folders()]
    return next((c for c in candidates if c and Path(c, "cuda_fp16.h").is_file()), None)


def _pathfinder_folder() -> str | None:
    from cuda import pathfinder  # comes with CuPy

    folder = pathfinder.find_nvidia_header_directory("cudart")
    return None if folder is None else str(folder)


def _toolkit_folders() -> list[str]:
    roots = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    return [os.path.join(root, "include") for root in roots if root]
