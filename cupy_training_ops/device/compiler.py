# SPDX-License-Identifier: MIT
"""Compilation of kernels, each once in a process, and CuPy's cache folder.

CuPy cannot be imported if that folder cannot be made.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..backend import Backend, Kernel
from ..errors import CompileError, ProviderError, raise_if_from_handler
from ..forks import Locked
from ..log import LOG
from ..plan import Device
from .source import Source

LANGUAGE = "--std=c++17"
# A slot; "1" compiles a module for 9.0a, with instructions that no other architecture has. CuPy
# appends its own -arch, which NVRTC then ignores, or before 12.9 refuses.
WARPGROUPS = "WARPGROUPS"
_HAS_WARPGROUPS, _WITH_WARPGROUPS, _OF_CUPY = (9, 0), "-arch=sm_90a", "-arch=sm_90"
_BY_THREADS = "--split-compile=8"
_ASKS_FOR_WARPGROUPS = """
#ifndef __CUDA_ARCH_FEAT_SM90_ALL
#error
#endif
"""
_CUDART_VERSION = re.compile(r"#define\s+CUDART_VERSION\s+(\d+)")
CACHE_REMEDY = "export CUPY_CACHE_DIR=$(mktemp -d)"


# Modules by (backend, name, code, options, device); kernels by that, symbol and raised limit.
_memo: dict[tuple[Any, ...], Any] = {}
_shared = Locked()
_ahead = Locked()  # of the thread that runs `compile_ahead`; others skip it


def kernel(
    backend: Backend,
    source: Source,
    slots: Mapping[str, str],
    symbol: str,
    device: int,
    shared_nbytes: int = 0,
) -> Kernel:
    """Return the kernel `symbol`, compiled at most once in a process for each device and slots.

    backend: loads modules. source: the text that defines the kernel. slots: macros that it is
    compiled with, {"T": "float"}. shared_nbytes: dynamic shared memory of a launch; if above 0, the
    kernel's limit is raised to the device's.
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
    """Compile modules, if several are new, each in its own thread; wanted: (source, slots) of each.

    backend: loads them. device: its number. The compiler releases the GIL. Errors are left to
    `kernel`, which compiles again. Does nothing if another thread is here, or under capture, whose
    mode may forbid other threads to load.
    """
    if not backend.loads_at_once or not _ahead.lock.acquire(blocking=False):
        return
    try:
        pairs = ((source, slot_options(slots)) for source, slots in wanted)
        modules = {(backend, s.name, s.code, options, device): (s, options) for s, options in pairs}
        new = [(key, *module) for key, module in modules.items() if key not in _memo]
        if len(new) > 1 and not backend.capturing(device):
            _load_at_once(backend, new, device)
    finally:
        _ahead.lock.release()


def _load_at_once(
    backend: Backend, new: list[tuple[tuple[Any, ...], Source, tuple[str, ...]]], device: int
) -> None:
    """Compile modules by the backend, each in a thread, into `_memo`; new: (key there, source,
    options) of each.

    `kernel` compiles again what fails here, and raises the error.
    """

    def load(key: tuple[Any, ...], source: Source, options: tuple[str, ...]) -> None:
        try:
            with backend.on(device):
                _memo.setdefault(key, backend.load(source, options))
        except Exception as error:
            LOG.info("fallback: %s.cu is compiled again, alone: %s", source.name, error)

    threads = [threading.Thread(target=load, args=one) for one in new]
    with contextlib.suppress(RuntimeError):  # at interpreter exit no thread starts
        for thread in threads:
            thread.start()
    for thread in threads:
        if thread.ident is not None:
            thread.join()


def slot_options(slots: Mapping[str, str]) -> tuple[str, ...]:
    """Return compiler options for slots: {"T": "__half"} -> (LANGUAGE, "-DCTO_T=__half")."""
    defines = tuple(f"-DCTO_{name}={value}" for name, value in sorted(slots.items()))
    own = (_WITH_WARPGROUPS,) if slots.get(WARPGROUPS) == "1" else ()
    return (LANGUAGE, *defines, *own)


def has_warpgroups(capability: tuple[int, int]) -> bool:
    """Return True if modules with WARPGROUPS run on a GPU of capability (major, minor)."""
    return capability == _HAS_WARPGROUPS and _compiles_warpgroups()


@functools.cache
def _compiles_warpgroups() -> bool:
    """Return True if this NVRTC accepts both -arch options and uses the first."""
    return _compiles(_ASKS_FOR_WARPGROUPS, (_WITH_WARPGROUPS, _OF_CUPY))


@functools.cache
def thread_options() -> tuple[str, ...]:
    """Return the option to compile a module's kernels in parallel, if NVRTC has it."""
    return (_BY_THREADS,) if _compiles("", (_BY_THREADS,)) else ()


def _compiles(code: str, options: tuple[str, ...]) -> bool:
    """Return True if NVRTC compiles `code`, a source text, with these options."""
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
    """Return include options for NVIDIA's headers (cuda_fp16.h, cuda_bf16.h)."""
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
    """Return the folder of cuda_fp16.h of NVRTC's CUDA major version, or None.

    Searches wheels, then toolkits: several versions may be installed.
    """
    major = _nvrtc_major()
    candidates = [*_wheel_folders(major), _pathfinder_folder(), *_toolkit_folders()]
    folders = (c for c in candidates if c and os.path.isfile(os.path.join(c, "cuda_fp16.h")))
    return next((c for c in folders if _header_major(c) in (major, None)), None)


def nvrtc() -> ModuleType:
    """Return CuPy's binding of NVRTC."""
    with importing("NVRTC"):
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()  # loads the library
    binding: ModuleType = nvrtc
    return binding


def _nvrtc_major() -> int:
    return nvrtc().getVersion()[0]  # type: ignore[no-any-return]


def _header_package(major: int) -> str:
    """Return the name for `pip install` of the headers of a CUDA major version."""
    return f"nvidia-cuda-runtime-cu{major}" if major < 13 else f"nvidia-cuda-runtime=={major}.*"


def _header_major(folder: str) -> int | None:
    """Return the CUDA major version of the headers in a folder, or None."""
    with contextlib.suppress(OSError):
        text = Path(folder, "cuda_runtime_api.h").read_text(encoding="utf-8", errors="replace")
        version = _CUDART_VERSION.search(text)
        return int(version[1]) // 1000 if version else None
    return None


def _wheel_folders(major: int) -> list[str]:
    """Return include folders of NVIDIA's wheels of a CUDA major version, which may not exist.

    cuda.pathfinder cannot choose the version.
    """
    component = "cuda_runtime" if major < 13 else f"cu{major}"
    return [os.path.join(root, component, "include") for root in _wheel_roots()]


def _wheel_roots() -> list[str]:
    """Return the folders of the namespace package `nvidia`, in which the wheels are."""
    spec = importlib.util.find_spec("nvidia")
    return list(spec.submodule_search_locations or ()) if spec else []


def _pathfinder_folder() -> str | None:
    from cuda import pathfinder  # comes with CuPy

    folder = pathfinder.find_nvidia_header_directory("cudart")
    return None if folder is None else str(folder)


def _toolkit_folders() -> list[str]:
    roots = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    return [os.path.join(root, "include") for root in roots if root]


# ---- CuPy's cache folder -----------------------------------------------------------


def cache_folder() -> str:
    """Return CuPy's cache folder, also an empty CUPY_CACHE_DIR, which is no folder."""
    return os.environ.get("CUPY_CACHE_DIR", os.path.expanduser("~/.cupy/kernel_cache"))


def _make_cache() -> None:
    """Make the folder before CuPy's import does: an error there would leave CuPy half imported."""
    with usable_cache():
        os.makedirs(cache_folder(), exist_ok=True)


def require_writable_cache() -> None:
    """Write a test file into the folder; permissions alone do not show that it is possible."""
    _make_cache()
    with usable_cache(), tempfile.TemporaryFile(dir=cache_folder()):
        pass


@contextlib.contextmanager
def logged(module: str) -> Iterator[None]:
    """Log the seconds of a compilation inside, or that the kernels came from CuPy's cache.

    module: its name in the log. A compilation is told by a new file in the cache folder.
    """
    before, start = _last_write(), time.perf_counter()
    yield
    seconds = time.perf_counter() - start
    if before is None or _last_write() != before:
        LOG.info("compiled: %s: %.2f s", module, seconds)
    else:
        LOG.debug("from the cache: %s: %.2f s", module, seconds)


def _last_write() -> int | None:
    """Return when CuPy's cache folder last got a file, in ns; None if there is no folder."""
    with contextlib.suppress(OSError):
        return os.stat(cache_folder()).st_mtime_ns
    return None


@contextlib.contextmanager
def usable_cache() -> Iterator[None]:
    """Convert an OSError inside to a ProviderError that names the folder."""
    try:
        yield
    except OSError as error:
        raise_if_from_handler(error)
        raise ProviderError(
            f"CuPy's kernel cache {cache_folder()!r} cannot be used "
            f"({error.strerror or error}); name another folder with: {CACHE_REMEDY}"
        ) from None


@contextlib.contextmanager
def importing(part: str) -> Iterator[None]:
    """Convert errors of an import inside, that of `part`, to a ProviderError with a remedy."""
    try:
        import cupy_backends  # noqa: F401 - light; fails first if CuPy is missing

        _make_cache()
        yield
    except ProviderError:
        raise
    except (ImportError, RuntimeError, OSError) as error:
        raise_if_from_handler(error)
        reason = " ".join(str(error.__cause__ or error).split())  # CuPy's own message is long
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == "cupy_backends"
        why = "CuPy is not installed" if is_missing else f"{part} cannot be loaded ({reason})"
        raise ProviderError(
            f"{why}; install it with: pip install 'cupy-training-ops[cuda12x]'"
        ) from None


# ---- any architecture, without a GPU -------------------------------------------------------------

# Maximum KiB of shared memory of a block, by architecture (CUDA C++ Programming Guide).
ARCHITECTURES = {
    "70": 96, "75": 64, "80": 163, "86": 99, "89": 99, "90": 227, "100": 227, "120": 99,
}  # fmt: skip
MULTIPROCESSORS = 132  # assumed without a GPU; no plan's types depend on it

# Options that CuPy adds.
_LIKE_CUPY = ("-ftz=true", "--device-as-default-execution-space", "--ptxas-options=-v")
# With a driver NVRTC uses the driver's cache, without the log of `ptxas -v`.
_UNCACHED, _UNCACHED_SINCE = "-no-cache", (12, 9)
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Resources:
    """Registers of a kernel's thread, its spill stores and loads; shared memory of a block."""

    registers: int
    spill_nbytes: int
    shared_nbytes: int


def device_of(architecture: str) -> Device:
    """Return a Device to plan for without a GPU; architecture: "90" for sm_90."""
    capability = (int(architecture[:-1]), int(architecture[-1]))
    nbytes = ARCHITECTURES[architecture] * 1024
    with contextlib.suppress(ProviderError):  # without NVRTC
        return Device(MULTIPROCESSORS, capability, nbytes, has_warpgroups(capability))
    return Device(MULTIPROCESSORS, capability, nbytes)


def compile_for(
    source: Source, options: tuple[str, ...], architecture: str
) -> dict[str, Resources]:
    """Compile a source to machine code for `sm_<architecture>`; return resources by kernel name.

    options: from `slot_options`. CompileError with the compiler's log.
    """
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
    """Return options beside those of the slots: headers, CuPy's, `ptxas -v`, no cache, sm_*."""
    uncached = (_UNCACHED,) if compiler.getVersion() >= _UNCACHED_SINCE else ()
    return (*header_options(), *_LIKE_CUPY, *uncached, f"-arch=sm_{architecture}")


def supported_architectures() -> tuple[str, ...]:
    """Return those of ARCHITECTURES that this NVRTC compiles for."""
    known = {str(number) for number in nvrtc().getSupportedArchs()}
    return tuple(arch for arch in ARCHITECTURES if arch in known)


def _resources(log: str) -> dict[str, Resources]:
    """Return {kernel: resources} from the log of `ptxas -v`, with a section for each kernel."""
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
