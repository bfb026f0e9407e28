# SPDX-License-Identifier: MIT
"""Backends by class of array: NumPy's run on the CPU provider, CuPy's on kernels."""

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
    """Return strides in bytes, or None for a C-contiguous array."""
    return None if array.flags.c_contiguous else array.strides


class OneStream:
    """The stream methods of a backend with one device and one stream; each ignores `device`."""

    def is_current(self, device: int) -> bool:
        """Return True: there is one device."""
        return True

    def on(self, device: int) -> contextlib.AbstractContextManager[None]:
        """Return an empty context."""
        return contextlib.nullcontext()

    def stream(self, device: int) -> int:
        """Return 0, the only stream."""
        return 0

    def stream_address(self, device: int) -> int:
        """Return 0, the default stream's address."""
        return 0

    def stream_of(self, device: int) -> Callable[[], int]:
        """Return a function that returns `stream_address(device)`."""
        return lambda: 0

    def is_alone(self, device: int) -> bool:
        """Return True: there is one device."""
        return True

    def capturing(self, device: int) -> bool:
        """Return False: there are no graphs."""
        return False

    def keeps_memory(self) -> bool:
        """Return True, as nothing is captured."""
        return True

    def record(self) -> object:
        """Return None, as nothing is queued."""
        return None

    def wait(self, mark: Any) -> None:
        """Let the host wait for a CUDA event, if `mark` is one; None: nothing to wait for."""
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
        """Return (backend, dtype, shape, is aligned, strides or None, device -1).

        All arrays count as aligned, as that does not matter to NumPy.
        """
        return (self, array.dtype, array.shape, True, strides(array), -1)

    def infos(self, arrays: Sequence[HostArray | None]) -> list[Info | None]:
        """Return the tuple of `info` (backend, dtype, shape, ...) for each array; None for None."""
        return [None if array is None else self.info(array) for array in arrays]

    def pointers(self, arrays: Sequence[HostArray | None]) -> list[int]:
        """Return the addresses of arrays, 0 for None."""
        return [0 if array is None else array.ctypes.data for array in arrays]

    def states(self, arrays: Sequence[HostArray | None]) -> list[object]:
        """Return (address, shape, strides, dtype) of each array, which may all change; None for
        None."""
        return [
            None if array is None else (array.ctypes.data, array.shape, array.strides, array.dtype)
            for array in arrays
        ]

    def offset(self, array: HostArray, nbytes: int) -> HostArray:
        """Return a view of a uint8 array without its first `nbytes` bytes."""
        return array[nbytes:]

    def views(self, array: HostArray, pieces: Sequence[Piece]) -> tuple[HostArray, ...]:
        """Return a view of a contiguous array for each piece (offset in bytes, shape)."""
        flat, size = array.reshape(-1), array.itemsize
        return tuple([flat[n // size :][: math.prod(s)].reshape(s) for n, s in pieces])

    def maker(self, spec: Spec, device: int) -> Callable[[], HostArray]:
        """Return a function that allocates an array of this shape and dtype."""
        return partial(self.empty, spec, device)

    def permute(self, array: HostArray, axes: Sequence[int]) -> HostArray:
        """Return a view with permuted dimensions."""
        return array.transpose(axes)

    def of_host(self, array: HostArray) -> HostArray:
        """Return an output in host memory as the caller gets it: itself."""
        return array

    def empty(self, spec: Spec, device: int) -> HostArray:
        """Allocate an array."""
        return np.empty(spec.shape, spec.dtype)

    def zeros(self, nbytes: int, device: int) -> HostArray:
        """Allocate a uint8 array of zeros."""
        return np.zeros(nbytes, np.uint8)

    def fill(self, array: HostArray, nbytes: int, byte: int) -> None:
        """Set the first `nbytes` bytes of a uint8 array to `byte`, synchronously."""
        array[:nbytes] = byte

    def clear_at(self, address: int, nbytes: int, stream: int) -> None:
        """Set bytes at an address to 0, synchronously; the stream is ignored."""
        ctypes.memset(address, 0, nbytes)

    def to_host(self, array: HostArray) -> HostArray:
        """Return the array itself."""
        return array

    def from_host(self, array: HostArray) -> HostArray:
        """Return the array itself."""
        return array

    def overwrite(self, array: HostArray, source: HostArray) -> None:
        """Copy the elements of `source`, of the same shape and dtype, into the array."""
        np.copyto(array, source, casting="no")

    def device(self, index: int) -> Device:
        """Raise ProviderError: there is no device to plan for."""
        raise ProviderError("NumPy arrays have no device to plan for")

    def current_device(self) -> int:
        """Return -1, the host."""
        return -1

    def work(self, name: str) -> Callable[..., None]:
        """Raise ProviderError: there is no queued work."""
        raise ProviderError(f"{name} does not run on NumPy arrays")

    def load(self, source: KernelSource, options: tuple[str, ...]) -> Module:
        """Raise ProviderError: there are no kernels."""
        raise ProviderError(f"{source.name}.cu does not run on NumPy arrays")


CPU = NumpyBackend()
NO_DEVICE = "CUDA finds no device"
BACKENDS: dict[type, Backend] = {np.ndarray: CPU}


class ForeignError(KeyError):
    """Raised for an array without a backend, which has to be adopted first."""


class _Tensors(dict[type, Backend]):
    """A dictionary that raises ForeignError for a class it lacks."""

    def __missing__(self, kind: type) -> Backend:
        raise ForeignError(kind)


TENSORS = _Tensors()  # backend of PyTorch's classes; CPU tensors are converted to NumPy's arrays


def info(array: Array) -> Info:
    """Return (backend, dtype, shape, is aligned to 16 bytes, strides or None, device).

    The fields of ArrayInfo as a tuple. KeyError for an array that has to be converted first.
    """
    kind = type(array)
    return (BACKENDS.get(kind) or TENSORS[kind]).info(array)


def infos(arrays: Sequence[Array | None]) -> tuple[Info | None, ...]:
    """Return the tuple of `info` (backend, dtype, shape, ...) for each array; None for None."""
    kinds = set(map(type, arrays))
    kinds.discard(type(None))
    if len(kinds) == 1:
        kind = kinds.pop()
        return tuple((BACKENDS.get(kind) or TENSORS[kind]).infos(arrays))
    return tuple([None if array is None else info(array) for array in arrays])


def is_array(value: object) -> bool:
    """Return True if a value's class has a backend."""
    return type(value) in BACKENDS or type(value) in TENSORS


def are_known(arrays: Sequence[object]) -> bool:
    """Return True if all values have a backend that is no tensor's, or are None."""
    return BACKENDS.keys() >= set(map(type, arrays)) - {type(None)}


def to_host(array: Array) -> HostArray:
    """Return an array as NumPy's, copied if it is on a GPU."""
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
    """Return the backend of PyTorch's tensors on a GPU; the first call imports CuPy."""
    if not TENSORS:
        cuda_backend()
        from ..device.tensors import PLAIN, TensorBackend

        TENSORS.update(dict.fromkeys(PLAIN, TensorBackend()))
    return next(iter(TENSORS.values()))


def cuda_backend() -> Backend:
    """Return the backend of CuPy's arrays; the first call imports CuPy and registers it."""
    with importing("CuPy"):
        import cupy

        from ..device.cuda import BACKEND
    return BACKENDS.setdefault(cupy.ndarray, BACKEND)  # tests may have registered another


def why_no_gpu() -> str | None:
    """Return the reason why this process has no GPU, or None if it has one."""
    try:
        cuda_backend()
    except ProviderError as error:
        return str(error)
    from cupy.cuda import runtime

    try:
        return None if runtime.getDeviceCount() else NO_DEVICE
    except runtime.CUDARuntimeError as error:
        return NO_DEVICE if "cudaErrorNoDevice" in str(error) else str(error)
