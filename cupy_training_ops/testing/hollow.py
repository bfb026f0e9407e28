# SPDX-License-Identifier: MIT
"""CuPy's own arrays without a GPU: addresses are made up, launches are noted instead of made.

A call goes its whole way as on a GPU; only memory must not be read or written.
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
Queued = tuple[str, tuple[object, ...]]  # a kernel or a piece of work, and its arguments

ALIGNMENT = 512
_addresses = itertools.count(2**40, 2**36)


def hollow(shape: tuple[int, ...], dtype: DTypeLike, offset: int = 0) -> cupy.ndarray:
    """A CuPy array of memory that is not there, `offset` elements off an aligned address."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = cupy.cuda.UnownedMemory(next(_addresses), nbytes + ALIGNMENT, None, 0)
    start = cupy.cuda.MemoryPointer(memory, offset * np.dtype(dtype).itemsize)
    return cupy.ndarray(shape, dtype, start)


class HollowDriver:
    """Notes launches, with the arguments that it finds in memory."""

    def __init__(self, launches: list[Queued]) -> None:
        self.launches = launches
        self.notes = True  # else a launch costs nothing: for who measures what is around it
        self._numbers: dict[tuple[str, tuple[Dtype, ...]], int] = {}
        self._kernels: list[tuple[str, tuple[Dtype, ...]]] = []

    def head(
        self, function: Any, grid: Grid, block: Grid, nbytes: int, types: Sequence[Dtype]
    ) -> tuple[int, ...]:
        """The kernel's number."""
        kernel = function.name, tuple(types)
        number = self._numbers.setdefault(kernel, len(self._kernels))
        if number == len(self._kernels):
            self._kernels.append(kernel)
        return (number,)

    def mend(self, error: Exception) -> bool:
        """Nothing fails here that could be mended."""
        return False

    def launch(self, kernel: int, stream: int, arguments: int, _: int) -> None:
        """Reads what the arguments' addresses point to; the stream is noted last."""
        if not self.notes:
            return
        name, types = self._kernels[kernel]
        addresses = (ctypes.c_uint64 * max(len(types), 1)).from_address(arguments)
        values = [_value(*pair) for pair in zip(addresses, types, strict=False)]
        self.launches.append((name, (*values, stream)))


def _value(address: int, dtype: Dtype) -> object:
    memory = (ctypes.c_char * dtype.itemsize).from_address(address)
    return np.frombuffer(bytes(memory), dtype)[0]


@dataclass(frozen=True)
class HollowKernel:
    """A kernel that is not there."""

    name: str
    launches: list[Queued]

    def __call__(self, *launch: Any) -> None:
        """Notes a launch beside steps that are no kernels."""
        self.launches.append((self.name, launch[2]))


class HollowModule(NamedTuple):
    """Any kernel."""

    launches: list[Queued]

    def get_function(self, name: str) -> Kernel:
        """A made-up kernel."""
        return HollowKernel(name, self.launches)

    def allow_shared(self, function: Kernel, nbytes: int) -> None:
        """Kernels that are not there ask for nothing."""


class HollowBackend(OneStream, CudaBackend):
    """The CUDA backend without what asks the driver."""

    loads_at_once = False

    def __init__(self) -> None:
        self.launches: list[Queued] = []
        self.driver = HollowDriver(self.launches)

    def maker(self, spec: Spec, device: int) -> Callable[[], cupy.ndarray]:
        """Return a function that makes an output."""
        return partial(hollow, spec.shape, spec.dtype)

    def empty(self, spec: Spec, device: int) -> cupy.ndarray:
        """Memory."""
        return hollow(spec.shape, spec.dtype)

    def zeros(self, nbytes: int, device: int) -> cupy.ndarray:
        """A workspace."""
        return hollow((nbytes,), np.uint8)

    def fill(self, array: cupy.ndarray, nbytes: int, byte: int) -> None:
        """Notes what is filled."""
        self.launches.append(("fill", (array.data.ptr, nbytes, byte)))

    def clear_at(self, address: int, nbytes: int, stream: int) -> None:
        """Notes what is cleared."""
        self.launches.append(("clear", (address, nbytes, stream)))

    def to_host(self, array: cupy.ndarray) -> HostArray:
        """Zeros: there is no memory to read."""
        return np.zeros(array.shape, array.dtype)

    def overwrite(self, array: cupy.ndarray, source: HostArray) -> None:
        """There is no memory to write."""

    def device(self, index: int) -> Device:  # type: ignore[override]  # there it is cached
        """The device that is planned for."""
        return Device(132, (9, 0), 227 * 1024)

    def current_device(self) -> int:
        """There is one."""
        return 0

    def work(self, name: str) -> Callable[..., None]:
        """Work that notes that it was queued."""
        return lambda *arguments: self.launches.append((name, arguments))

    def record(self) -> object:
        """An event that notes that it was recorded."""
        self.launches.append(("record", ()))
        return object()

    def wait(self, mark: object) -> None:
        """Notes what is waited for."""
        self.launches.append(("wait", (mark,)))

    def load(self, source: KernelSource, options: tuple[str, ...]) -> HollowModule:
        """Nothing is compiled."""
        return HollowModule(self.launches)


HOLLOW = HollowBackend()


@contextlib.contextmanager
def hollow_launches() -> Iterator[list[Queued]]:
    """CuPy's arrays are hollow ones in the context; its value is what is launched there."""
    before = dict(backends.BACKENDS)
    backends.BACKENDS[cupy.ndarray] = HOLLOW
    HOLLOW.launches.clear()
    try:
        yield HOLLOW.launches
    finally:
        backends.BACKENDS.clear()
        backends.BACKENDS.update(before)
