# SPDX-License-Identifier: MIT
"""Which arrays have which backend: NumPy's run on the CPU provider, CuPy's on kernels."""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..backend import Array, Backend, Driver, Info, KernelSource, Module, Piece
from ..declare.schema import Shape, Spec
from ..device.compiler import importing
from ..dtypes import HostArray
from ..errors import ProviderError
from ..plan import Device


def strides(array: HostArray) -> Shape | None:
    """Strides of NumPy's array in bytes; None where it is C-contiguous."""
    return None if array.flags.c_contiguous else array.strides


class OneStream:
    """Streams of a backend that has one, on a device that is always current."""

    def is_current(self, device: int) -> bool:
        """There is one device."""
        return True

    def on(self, device: int) -> contextlib.AbstractContextManager[None]:
        """There is nothing to switch."""
        return contextlib.nullcontext()

    def stream(self, device: int) -> int:
        """There is one stream."""
        return 0

    def stream_address(self, device: int) -> int:
        """The default stream's."""
        return 0

    def stream_of(self, device: int) -> Callable[[], int]:
        """Return a function that gives that address."""
        return lambda: 0

    def is_alone(self, device: int) -> bool:
        """There is one device."""
        return True

    def capturing(self, device: int) -> bool:
        """There are no graphs."""
        return False

    def keeps_memory(self) -> bool:
        """Nothing is captured."""
        return True

    def record(self) -> object:
        """Nothing is queued."""
        return None

    def wait(self, mark: Any) -> None:
        """The host waits for what a GPU is still to do."""
        if mark is not None:
            mark.synchronize()


class NumpyBackend(OneStream):
    """NumPy arrays, computed by the families' `reference.py`."""

    name = "cpu"
    runs_kernels = False
    loads_at_once = False
    has_tensors = False
    driver: Driver | None = None

    def info(self, array: HostArray) -> Info:
        """The fields of ArrayInfo; alignment does not matter to NumPy."""
        return (self, array.dtype, array.shape, True, strides(array), -1)

    def infos(self, arrays: Sequence[HostArray | None]) -> list[Info | None]:
        """The `info` of each array of a list; None for None."""
        return [None if array is None else self.info(array) for array in arrays]

    def pointers(self, arrays: Sequence[HostArray | None]) -> list[int]:
        """The addresses of the first elements; 0 for None."""
        return [0 if array is None else array.ctypes.data for array in arrays]

    def states(self, arrays: Sequence[HostArray | None]) -> list[object]:
        """Return what may change of arrays of NumPy's: everything."""
        return [
            None if array is None else (array.ctypes.data, array.shape, array.strides, array.dtype)
            for array in arrays
        ]

    def offset(self, array: HostArray, nbytes: int) -> HostArray:
        """The bytes from there on."""
        return array[nbytes:]

    def views(self, array: HostArray, pieces: Sequence[Piece]) -> tuple[HostArray, ...]:
        """Views of a contiguous array under new shapes, each so many bytes from its start."""
        flat, size = array.reshape(-1), array.itemsize
        return tuple([flat[n // size :][: math.prod(s)].reshape(s) for n, s in pieces])

    def maker(self, spec: Spec, device: int) -> Callable[[], HostArray]:
        """Return a function that makes an uninitialised array."""
        return partial(self.empty, spec, device)

    def permute(self, array: HostArray, axes: Sequence[int]) -> HostArray:
        """A view of the array's memory with its dimensions in another order."""
        return array.transpose(axes)

    def of_host(self, array: HostArray) -> HostArray:
        """A result on the host, in kind."""
        return array

    def empty(self, spec: Spec, device: int) -> HostArray:
        """An uninitialised array."""
        return np.empty(spec.shape, spec.dtype)

    def zeros(self, nbytes: int, device: int) -> HostArray:
        """Bytes of zeros."""
        return np.zeros(nbytes, np.uint8)

    def fill(self, array: HostArray, nbytes: int, byte: int) -> None:
        """At once."""
        array[:nbytes] = byte

    def clear_at(self, address: int, nbytes: int, stream: int) -> None:
        """At once."""
        ctypes.memset(address, 0, nbytes)

    def to_host(self, array: HostArray) -> HostArray:
        """The array itself."""
        return array

    def from_host(self, array: HostArray) -> HostArray:
        """The array itself."""
        return array

    def overwrite(self, array: HostArray, source: HostArray) -> None:
        """Copy the elements."""
        np.copyto(array, source, casting="no")

    def device(self, index: int) -> Device:
        """There is none to plan for."""
        raise ProviderError("NumPy arrays have no device to plan for")

    def current_device(self) -> int:
        """The host."""
        return -1

    def work(self, name: str) -> Callable[..., None]:
        """Nothing is queued on the host."""
        raise ProviderError(f"{name} does not run on NumPy arrays")

    def load(self, source: KernelSource, options: tuple[str, ...]) -> Module:
        """Kernels do not run on NumPy arrays."""
        raise ProviderError(f"{source.name}.cu does not run on NumPy arrays")


CPU = NumpyBackend()
BACKENDS: dict[type, Backend] = {np.ndarray: CPU}


class ForeignError(KeyError):
    """An array has no backend: `adopt` has to take it first. Nobody else raises it."""


class _Tensors(dict[type, Backend]):
    def __missing__(self, kind: type) -> Backend:
        raise ForeignError(kind)


TENSORS = _Tensors()  # of PyTorch's; those that are on no GPU have to be adopted


def info(array: Array) -> Info:
    """The fields of ArrayInfo; KeyError for an array that `adopt` has to take first."""
    kind = type(array)
    return (BACKENDS.get(kind) or TENSORS[kind]).info(array)


def infos(arrays: Sequence[Array | None]) -> tuple[Info | None, ...]:
    """The `info` of each array of a list; None for None."""
    kinds = set(map(type, arrays))
    kinds.discard(type(None))
    if len(kinds) == 1:
        kind = kinds.pop()
        return tuple((BACKENDS.get(kind) or TENSORS[kind]).infos(arrays))
    return tuple([None if array is None else info(array) for array in arrays])


def is_array(value: object) -> bool:
    """Return True if a value is of a class that some backend takes."""
    return type(value) in BACKENDS or type(value) in TENSORS


def are_known(arrays: Sequence[object]) -> bool:
    """Return True if all of a list have a backend, or are None."""
    return BACKENDS.keys() >= set(map(type, arrays)) - {type(None)}


def to_host(array: Array) -> HostArray:
    """An array that has a backend as NumPy's, copied from the GPU where it is there."""
    return info(array)[0].to_host(array)


@contextlib.contextmanager
def numpy_runs_on(backend: Backend) -> Iterator[None]:
    """Run NumPy arrays on another backend inside the context: emulated kernels, in tests."""
    before = BACKENDS[np.ndarray]
    BACKENDS[np.ndarray] = backend
    try:
        yield
    finally:
        BACKENDS[np.ndarray] = before


def tensor_backend() -> Backend:
    """The backend of PyTorch's tensors on a GPU; imports CuPy, and registers their classes."""
    if not TENSORS:
        cuda_backend()
        from ..device.tensors import PLAIN, TensorBackend

        TENSORS.update(dict.fromkeys(PLAIN, TensorBackend()))
    return next(iter(TENSORS.values()))


def cuda_backend() -> Backend:
    """The CUDA backend; imports CuPy, and registers its arrays."""
    with importing("CuPy"):
        import cupy

        from ..device.cuda import BACKEND
    return BACKENDS.setdefault(cupy.ndarray, BACKEND)  # a test may have put another there
