# SPDX-License-Identifier: MIT
"""g++, NVIDIA's headers, and a cache of what was built with them."""

import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import EmulatorCompileError
from .options import HostOptions

EMULATOR_FOLDER = Path(__file__).parent
# In a copy of the checkout these may be links, so that what was built for the other serves.
INCLUDE_FOLDER = (EMULATOR_FOLDER / "include").resolve()
RUNTIME_FOLDER = (EMULATOR_FOLDER / "runtime").resolve()

# What debug information gives as the place of a file named by a relative #line.
SOURCE_ROOT = "/kernel/"

# In DWARF 5 the first file of a source with #line is taken for the source itself.
SHARED_LIBRARY_FLAGS = ("-shared", "-fPIC", "-g1", "-gdwarf-4")
RUNTIME_FLAGS = (
    "-std=c++17",
    "-O2",
    # Its files call each other for each thread's step: inlined, kernels run in a tenth less time.
    "-flto",
    "-ffp-contract=off",
    "-fno-semantic-interposition",
    "-U_FORTIFY_SOURCE",
    *SHARED_LIBRARY_FLAGS,
)
KERNEL_FLAGS = (
    "-Og",  # built in a fifth less time than with -O1, and most kernels run for milliseconds
    # Where variables are at each instruction nobody asks: a sixth of the time to build.
    "-fno-var-tracking",
    "-fno-var-tracking-assignments",
    "-gno-column-info",
    *SHARED_LIBRARY_FLAGS,
    "-w",
    "-fmax-errors=20",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-exceptions",
    "-fstack-clash-protection",
    # Otherwise all modules would share the __shared__ variables of equally named templates.
    "-fvisibility=hidden",
    # Both sanitizers call handlers of our own: see undefined_behaviour.cpp, access_checks.cpp.
    "-fsanitize=undefined,bounds-strict,kernel-address",
    # Null pointers and sizes of objects are seen by the address checks, at less time to build.
    "-fno-sanitize=vptr,null,object-size",
    "-fno-sanitize-recover=all",
    "--param=asan-instrumentation-with-call-threshold=0",
    "--param=asan-stack=0",
    "--param=asan-globals=0",
)
# An instruction in place of a call that says what is wrong: a tenth less time to build.
TRAP_FLAG = "-fsanitize-undefined-trap-on-error"
# The runtime has the checks of addresses: in each module they took a tenth of the time to build.
_CHECKED = [f"{access}{nbytes}" for access in ("load", "store") for nbytes in (1, 2, 4, 8, 16, "N")]
_WRAPPED = [f"-Wl,--wrap=__asan_{name}" for name in (*_CHECKED, "handle_no_return")]
# Keeps g++ from linking libubsan, whose handlers the runtime replaces.
KERNEL_LINK_FLAGS = ("-nodefaultlibs", "-lm", "-lc", "-lgcc", *_WRAPPED)


def unavailable_reason() -> str | None:
    """Why kernels cannot run here, or None where they can."""
    if sys.platform != "linux":
        return f"the kernel emulator needs Linux, not {sys.platform}"
    for tool in ("g++", "addr2line"):
        if shutil.which(tool) is None:
            return f"the kernel emulator needs {tool}, which is not installed"
    if header_folder() is None:
        return "the kernel emulator needs CUDA headers (extra cuda12x or cuda13x)"
    return None


@functools.cache
def header_folder() -> Path | None:
    """The folder of cuda_fp16.h: from the header wheel, else from a CUDA toolkit."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (spec and spec.submodule_search_locations) or ()]
    wheels = [actual.parent for root in roots for actual in root.glob("*/include/cuda_fp16.h")]
    toolkits = [Path(os.environ[name]) / "include" for name in _TOOLKITS if name in os.environ]
    candidates = [*sorted(wheels), *(t for t in toolkits if (t / "cuda_fp16.h").exists())]
    return candidates[0] if candidates else None


_TOOLKITS = ("CUDA_PATH", "CUDA_HOME")


def build_runtime() -> Path:
    """The runtime's shared library."""
    ucontext = os.environ.get("CTO_EMULATOR_UCONTEXT") == "1"
    flags = [*RUNTIME_FLAGS, *(["-DCTO_EMULATOR_UCONTEXT"] if ucontext else [])]
    sources = sorted(str(path) for path in RUNTIME_FOLDER.glob("*.cpp"))

    def build(folder: Path) -> None:
        output = ["-o", str(folder / "runtime.so")]
        _compile([*flags, *_include_flags(), *sources, *output, "-lrt"], folder)

    return _build_once(_key("runtime", *flags), build) / "runtime.so"


def build_module(source: str, options: HostOptions, *, explains: bool) -> Path:
    """The shared library of one translated kernel source.

    Undefined behaviour ends the launch of a module that explains with what happened, and of one
    that does not with an illegal instruction.
    """
    sanitized = KERNEL_FLAGS if explains else (*KERNEL_FLAGS, TRAP_FLAG)
    flags = [*options.flags, *sanitized]
    precompiled = _precompiled_header(options.standard, sanitized)

    def build(folder: Path) -> None:
        (folder / "kernel.cpp").write_text(source)
        places = [
            f"-fdebug-prefix-map={folder}/={SOURCE_ROOT}",
            f"-fdebug-prefix-map={folder}=/kernel",
        ]
        prefix = [f"-std={options.standard}", *sanitized, "-include", str(precompiled)]
        output = ["kernel.cpp", "-o", "kernel.so", *KERNEL_LINK_FLAGS]
        _compile([*prefix, *places, *options.flags, *_include_flags(), *output], folder)

    contents = _contents(options.include_folders)
    key = _key("module", options.standard, *flags, *KERNEL_LINK_FLAGS, source, *contents)
    return _build_once(key, build) / "kernel.so"


def _precompiled_header(standard: str, kernel_flags: tuple[str, ...]) -> Path:
    """A header that includes cuda_on_cpu.h and has its compiled form beside it."""
    name = "cuda_on_cpu.h"

    def build(folder: Path) -> None:
        (folder / name).write_text(f'#include "{INCLUDE_FOLDER / name}"\n')
        flags = [f"-std={standard}", *kernel_flags, *_include_flags(), "-x", "c++-header"]
        _compile([*(f for f in flags if f != "-shared"), name, "-o", f"{name}.gch"], folder)

    return _build_once(_key("header", standard, *kernel_flags), build) / name


def _include_flags() -> list[str]:
    return ["-I", str(INCLUDE_FOLDER), "-isystem", str(header_folder())]


def _compile(arguments: list[str], folder: Path) -> None:
    # A sanitizer preloaded into Python has no business in the compiler.
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"} | {"LC_ALL": "C"}
    result = subprocess.run(
        ["g++", *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    if result.returncode != 0:
        raise EmulatorCompileError(f"g++ failed:\n{result.stderr}")


def _build_once(key: str, build: Callable[[Path], None]) -> Path:
    """The cache folder of `key`. If it must be built, one process does and the others wait."""
    target = cache_folder() / key
    if not target.exists():
        with _locked(target.with_suffix(".lock")):
            if not target.exists():
                _build(target, build)
    return target


def _build(target: Path, build: Callable[[Path], None]) -> None:
    """The folder appears when it is complete: a build cut short is made afresh."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
        folder = Path(scratch) / target.name
        folder.mkdir()
        build(folder)
        folder.rename(target)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone among the processes that lock this file; released also when a process dies."""
    import fcntl  # of Linux: elsewhere unavailable_reason must still be importable

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cache_folder() -> Path:
    """Where built kernels are kept."""
    chosen = os.environ.get("CTO_EMULATOR_CACHE")
    if chosen:
        return Path(chosen).resolve()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "cupy-training-ops-emulator"


def _key(kind: str, *parts: str) -> str:
    digest = hashlib.sha256(_fingerprint())
    for part in parts:
        digest.update(part.encode() + b"\0")
    return f"{kind}-{digest.hexdigest()[:32]}"


@functools.cache
def _fingerprint() -> bytes:
    """Changes with the compiler, NVIDIA's headers and the emulator's own C++ files."""
    version = subprocess.run(["g++", "-v"], capture_output=True, check=True).stderr
    folder = header_folder()
    assert folder is not None
    nvidia = [(folder / f"cuda_{name}.h").read_bytes() for name in ("fp16", "bf16", "fp8")]
    own = [text.encode() for text in _contents([INCLUDE_FOLDER, RUNTIME_FOLDER])]
    parts = [version, *nvidia, *own]
    return hashlib.sha256(b"\0".join(parts)).digest()


def _contents(folders: Iterable[Path]) -> list[str]:
    """Path and text of every file below the folders, NVIDIA's own headers excepted."""
    own = [folder for folder in folders if not (folder / "cuda_fp16.h").exists()]
    files = sorted(path for folder in own for path in folder.rglob("*") if path.is_file())
    return [f"{path}\n{path.read_text(errors='replace')}" for path in files]
