# SPDX-License-Identifier: MIT
"""Kernels compiled for the CPU, with the interface of cupy.RawModule."""

import contextlib
import ctypes
import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from .arguments import Arguments, PackedArguments, ParameterType, check_arguments
from .errors import EmulatorError
from .library import KernelLibrary
from .limits import (
    DEFAULT_SHARED_NBYTES,
    MAX_SHARED_NBYTES,
    Dimensions,
    check_block,
    check_grid,
    check_shared_grant,
    check_shared_memory,
    three_dimensions,
)
from .memory import GuardedArrays, GuardedSharedMemory, Snapshot
from .native import LaunchRequest, runtime
from .options import translate_options
from .settings import BLOCK_ORDERS, THREAD_ORDERS, current_settings
from .source import translate
from .toolchain import build_module

_ILLEGAL_INSTRUCTION = "illegal instruction"  # the words of faults.cpp

# The runtime has one set of threads.
_launch_lock = threading.Lock()


class EmulatedModule:
    """A CUDA source compiled for the CPU. Mirrors cupy.RawModule."""

    def __init__(
        self,
        code: str,
        options: tuple[str, ...] = (),
        name_expressions: Iterable[str] | None = None,
        *,
        max_shared_nbytes: int = MAX_SHARED_NBYTES,
    ) -> None:
        """Compile `code`, whose local includes are already inlined.

        `max_shared_nbytes` is what a block may have on request on the device that is emulated.
        """
        self._source = translate(code, tuple(name_expressions or ()))
        self._options = translate_options(options)
        self._max_shared_nbytes = max_shared_nbytes
        self._library = self._build(explains=False)

    def _build(self, explains: bool) -> KernelLibrary:
        return KernelLibrary(build_module(self._source, self._options, explains=explains))

    @functools.cached_property
    def _explaining(self) -> KernelLibrary:
        """The library that says which behaviour was undefined; the other one is built sooner."""
        return self._build(explains=True)

    @property
    def kernel_names(self) -> list[str]:
        """The names that get_function takes."""
        return sorted(self._library.kernels)

    def get_function(self, name: str) -> "EmulatedKernel":
        """The kernel of this name, or of this name expression."""
        if name not in self._library.kernels:
            raise EmulatorError(f"no kernel {name!r}; there are {', '.join(self.kernel_names)}")
        return EmulatedKernel(
            self._library, lambda: self._explaining, name, self._max_shared_nbytes
        )


class EmulatedKernel:
    """One kernel. Called like a cupy.RawKernel."""

    def __init__(
        self,
        library: KernelLibrary,
        explaining: Callable[[], KernelLibrary],
        name: str,
        max_shared_nbytes: int,
    ) -> None:
        """Read the kernel's signature from its library."""
        entry = library.kernels[name]
        self.name = name
        self._library = library
        self._explaining = explaining
        self._static_shared = library.static_shared_bytes(name)
        self._granted_shared = max(DEFAULT_SHARED_NBYTES - self._static_shared, 0)
        self._max_shared_nbytes = max_shared_nbytes
        self._max_threads = min(entry.max_threads, 1024)
        declared = entry.parameters[: entry.parameter_count]
        self.parameters = tuple(ParameterType(p.kind.decode(), p.bytes) for p in declared)

    @property
    def shared_size_bytes(self) -> int:
        """The static shared memory of a block, as in CuPy."""
        return self._static_shared

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """The dynamic shared memory that a launch may ask for; can be raised, as in CuPy."""
        return self._granted_shared

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, nbytes: int) -> None:
        with self._named_errors():
            check_shared_grant(self._static_shared, nbytes, self._max_shared_nbytes)
        self._granted_shared = nbytes

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Arguments,
        shared_mem: int = 0,
        *,
        reachable: Sequence[np.ndarray] = (),
    ) -> None:
        """Launch and wait. `reachable` are arrays whose addresses stand in structures in `args`."""
        check_arguments(self.name, self.parameters, args)
        grid, block = three_dimensions("grid", grid), three_dimensions("block", block)
        self._check_limits(grid, block, shared_mem)
        arrays = self._arrays(args, reachable)
        with _launch_lock, GuardedArrays(arrays) as memory, GuardedSharedMemory(shared_mem) as own:
            packed = PackedArguments(self.parameters, args, memory)
            before = Snapshot(packed.words())
            self._run(functools.partial(self._request, grid, block, packed, own), before)
            memory.store()

    def _check_limits(self, grid: Dimensions, block: Dimensions, dynamic: int) -> None:
        with self._named_errors():
            check_grid(grid)
            check_block(block, self._max_threads)
            check_shared_memory(self._static_shared, dynamic, self._granted_shared)

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except EmulatorError as error:
            raise EmulatorError(f"{self.name}: {error}") from None

    def _arrays(self, args: Arguments, reachable: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        arrays = {
            f"argument {index}": value
            for index, (parameter, value) in enumerate(zip(self.parameters, args, strict=True))
            if parameter.kind == "p" and isinstance(value, np.ndarray)
        }
        return arrays | {f"reachable array {i}": array for i, array in enumerate(reachable)}

    def _request(
        self,
        grid: Dimensions,
        block: Dimensions,
        packed: PackedArguments,
        shared: GuardedSharedMemory,
        library: KernelLibrary,
    ) -> LaunchRequest:
        settings = current_settings()
        return LaunchRequest(
            body=library.kernels[self.name].body,
            arguments=packed.addresses,
            grid=grid,
            block=block,
            thread_order=THREAD_ORDERS.index(settings.threads),
            reverse_blocks=BLOCK_ORDERS.index(settings.blocks),
            seed=settings.seed,
            time_limit_milliseconds=max(1, round(settings.time_limit_seconds * 1000)),
            dynamic_shared=shared.address,
            dynamic_shared_bytes=shared.nbytes,
            static_shared=library.static_shared,
            static_shared_count=len(library.static_shared),
        )

    def _run(self, request: Callable[[KernelLibrary], LaunchRequest], before: Snapshot) -> None:
        """Launch; where behaviour was undefined, launch again from the same memory to say which."""
        failure = self._failure(self._library, request)
        if failure is not None and _ILLEGAL_INSTRUCTION in failure:
            before.restore()
            failure = self._failure(self._explaining(), request) or failure
        if failure is not None:
            raise EmulatorError(f"{self.name}: {failure}")

    def _failure(
        self, library: KernelLibrary, request: Callable[[KernelLibrary], LaunchRequest]
    ) -> str | None:
        """Launch; what went wrong and where, or None."""
        if runtime().emulator_launch(ctypes.byref(request(library))):
            return None
        text: str = runtime().emulator_failure_text().decode(errors="replace")
        addresses = list(_return_addresses())
        line = library.source_line(addresses) if addresses else None
        return text + (f" at {line}" if line else "")


def _return_addresses() -> Iterator[int]:
    """Where the kernel was when it failed; empty if the message says it."""
    return itertools.takewhile(bool, runtime().emulator_failure_return_addresses())
