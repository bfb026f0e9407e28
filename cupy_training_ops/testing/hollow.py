# SPDX-License-Identifier: MIT
"""CuPy arrays without a GPU: addresses are invented, launches are recorded instead of made.

A call takes the same path as on a GPU; only memory must not be read or written. An array without
memory is called hollow.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import cupy
import numpy as np
from numpy.typing import DTypeLike

from ..backend import Kernel, KernelSource
from ..call import backends
from ..call.backends import OneStream
from ..declare.schema import Spec
from ..device.cuda import CudaBackend
from ..dtypes import Dtype, HostArray
from ..plan import Device

Grid = tuple[int, ...]
Queued = tuple[str, tuple[object, ...]]  # name of a kernel or of other work, and its arguments

ALIGNMENT = 512  # bytes
_addresses = itertools.count(2**40, 2**36)  # of arrays, 64 GiB apart


def hollow(shape: tuple[int, ...], dtype: DTypeLike, offset: int = 0) -> cupy.ndarray:
    """Return a CuPy array at an invented address, `offset` elements behind a multiple of ALIGNMENT.

    Each has 64 GiB of addresses, so that no two overlap.
    """
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = cupy.cuda.UnownedMemory(next(_addresses), nbytes + ALIGNMENT, None, 0)
    start = cupy.cuda.MemoryPointer(memory, offset * np.dtype(dtype).itemsize)
    return cupy.ndarray(shape, dtype, start)


class HollowDriver:
    """Driver that appends each launch to `launches`: (kernel's name, (*arguments, stream))."""

    def __init__(self, launches: list[Queued]) -> None:
        self.launches = launches
        self.notes = True  # False: do nothing, to measure the time of a call around its launch
        self._numbers: dict[tuple[str, tuple[Dtype, ...]], int] = {}  # index in _kernels
        self._kernels: list[tuple[str, tuple[Dtype, ...]]] = []  # (name, dtypes of arguments)

    def head(
        self, function: Any, grid: Grid, block: Grid, nbytes: int, types: Sequence[Dtype]
    ) -> tuple[int, ...]:
        """Return (number of this kernel,), the first arguments of `launch`.

        function: the kernel. types: dtypes of its arguments. Sizes of grid and block, and nbytes of
        shared memory, are ignored.
        """
        kernel = function.name, tuple(types)
        number = self._numbers.setdefault(kernel, len(self._kernels))
        if number == len(self._kernels):
            self._kernels.append(kernel)
        return (number,)

    def mend(self, error: Exception) -> bool:
        """Return False: no failed launch can be retried."""
        return False

    def launch(self, kernel: int, stream: int, arguments: int, _: int) -> None:
        """Record a launch.

        kernel: number from `head`. arguments: address of a table with a pointer to each argument.
        """
        if not self.notes:
            return
        name, types = self._kernels[kernel]
        addresses = (ctypes.c_uint64 * max(len(types), 1)).from_address(arguments)
        values = [_value(*pair) for pair in zip(addresses, types, strict=False)]
        self.launches.append((name, (*values, stream)))


def _value(address: int, dtype: Dtype) -> object:
    """Read a scalar or struct at an address of host memory."""
    memory = (ctypes.c_char * dtype.itemsize).from_address(address)
    return np.frombuffer(bytes(memory), dtype)[0]


@dataclass(frozen=True)
class HollowKernel:
    """A kernel whose launches are recorded."""

    name: str
    launches: list[Queued]

    def __call__(self, *launch: Any) -> None:
        """Record (name, arguments) of a launch as CuPy makes it: (grid, block, arguments, ...)."""
        self.launches.append((self.name, launch[2]))


class HollowModule(NamedTuple):
    """A compiled module that has a hollow kernel of any name."""

    launches: list[Queued]

    def get_function(self, name: str) -> Kernel:
        """Return a kernel that records its launches."""
        return HollowKernel(name, self.launches)

    def allow_shared(self, function: Kernel, nbytes: int) -> None:
        """Do nothing, in place of the kernel's limit of shared memory."""


class HollowBackend(OneStream, CudaBackend):
    """The CUDA backend with hollow arrays; `launches` records launches, fills and events."""

    loads_at_once = False

    def __init__(self) -> None:
        self.launches: list[Queued] = []
        self.driver = HollowDriver(self.launches)

    def maker(self, spec: Spec, device: int) -> Callable[[], cupy.ndarray]:
        """Return a function that makes a hollow output."""
        return partial(hollow, spec.shape, spec.dtype)

    def empty(self, spec: Spec, device: int) -> cupy.ndarray:
        """Return a hollow array."""
        return hollow(spec.shape, spec.dtype)

    def zeros(self, nbytes: int, device: int) -> cupy.ndarray:
        """Return a hollow workspace, of uint8."""
        return hollow((nbytes,), np.uint8)

    def fill(self, array: cupy.ndarray, nbytes: int, byte: int) -> None:
        """Record ("fill", (address, nbytes, byte))."""
        self.launches.append(("fill", (array.data.ptr, nbytes, byte)))

    def clear_at(self, address: int, nbytes: int, stream: int) -> None:
        """Record ("clear", (address, nbytes, stream))."""
        self.launches.append(("clear", (address, nbytes, stream)))

    def to_host(self, array: cupy.ndarray) -> HostArray:
        """Return zeros: there is no memory to read."""
        return np.zeros(array.shape, array.dtype)

    def overwrite(self, array: cupy.ndarray, source: HostArray) -> None:
        """Do nothing: there is no memory to write."""

    def device(self, index: int) -> Device:  # type: ignore[override]  # there it is cached
        """Return an H100's numbers: multiprocessors, compute capability, bytes of shared memory."""
        return Device(132, (9, 0), 227 * 1024)

    def current_device(self) -> int:
        """Return 0, the only device."""
        return 0

    def work(self, name: str) -> Callable[..., None]:
        """Return a function that records (name, its arguments), in place of a library's work."""
        return lambda *arguments: self.launches.append((name, arguments))

    def record(self) -> object:
        """Record ("record", ()); return an object for the event."""
        self.launches.append(("record", ()))
        return object()

    def wait(self, mark: object) -> None:
        """Record ("wait", (mark,))."""
        self.launches.append(("wait", (mark,)))

    def load(self, source: KernelSource, options: tuple[str, ...]) -> HollowModule:
        """Return a module of hollow kernels; compile nothing."""
        return HollowModule(self.launches)


HOLLOW = HollowBackend()


@contextlib.contextmanager
def hollow_launches() -> Iterator[list[Queued]]:
    """Context in which calls with CuPy arrays use HOLLOW; its value is the list of launches."""
    before = dict(backends.BACKENDS)
    backends.BACKENDS[cupy.ndarray] = HOLLOW
    HOLLOW.launches.clear()
    try:
        yield HOLLOW.launches
    finally:
        backends.BACKENDS.clear()
        backends.BACKENDS.update(before)
