# SPDX-License-Identifier: MIT
"""The CUDA backend: CuPy's arrays, streams, pool and compiler behind the names of `Backend`."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import cupy
import numpy as np

from ..backend import Driver, Extents, Info, Kernel, KernelSource, Module, Piece
from ..declare.schema import Spec
from ..dtypes import Dtype, HostArray
from ..errors import CompileError
from ..plan import Device
from . import graphs, streams
from .compiler import has_warpgroups, header_options, thread_options, usable_cache

STATIC_SHARED, MAX_DYNAMIC_SHARED = 1, 8  # CUfunction_attribute
PER_THREAD = cupy.cuda.Stream.ptds.ptr  # one handle for the default streams of all threads


class _Driver:
    """CUDA's own, by way of CuPy's binding."""

    launch = staticmethod(cupy.cuda.driver.launchKernel)

    def mend(self, error: Exception) -> bool:
        """Make a new thread's context, if it was missing."""
        if "CUDA_ERROR_INVALID_CONTEXT" not in str(error):
            return False
        cupy.cuda.runtime.free(0)  # any call that needs a context makes it
        return True

    def head(
        self, function: Any, grid: Extents, block: Extents, nbytes: int, _: Sequence[Dtype]
    ) -> tuple[int, ...]:
        """The function's handle, all three extents, shared memory."""
        ones = 1, 1
        return (function.ptr, *(*grid, *ones)[:3], *(*block, *ones)[:3], nbytes)


class CudaBackend:
    """One object for all CUDA devices; a device is named by its number."""

    name = "cuda"
    runs_kernels = True
    loads_at_once = True
    has_tensors = False
    driver: Driver = _Driver()

    def info(self, array: cupy.ndarray) -> Info:
        """The fields of ArrayInfo."""
        data = array.data
        return (
            self,
            array.dtype,
            array.shape,
            data.ptr % 16 == 0,
            # `flags` makes an object, which takes half a microsecond.
            None if array._c_contiguous else array.strides,
            data.device_id,
        )

    def infos(self, arrays: Sequence[cupy.ndarray | None]) -> list[Info | None]:
        """The `info` of each array of a list; None for None."""
        return [
            None
            if a is None
            else (
                self,
                a.dtype,
                a.shape,
                a.data.ptr % 16 == 0,
                None if a._c_contiguous else a.strides,
                a.data.device_id,
            )
            for a in arrays
        ]

    def pointers(self, arrays: Sequence[cupy.ndarray | None]) -> list[int]:
        """The addresses of the first elements; 0 for None."""
        return [0 if array is None else array.data.ptr for array in arrays]

    def states(self, arrays: Sequence[cupy.ndarray | None]) -> list[object]:
        """Memory, dtype and device of a CuPy array stay; its shape can be set."""
        return [None if array is None else array.shape for array in arrays]

    def offset(self, array: cupy.ndarray, nbytes: int) -> int:
        """A kernel argument that points `nbytes` into the array."""
        return array.data.ptr + nbytes  # type: ignore[no-any-return]

    def views(self, array: cupy.ndarray, pieces: Sequence[Piece]) -> tuple[cupy.ndarray, ...]:
        """Views of a contiguous array under new shapes, each so many bytes from its start."""
        make, dtype, data = cupy.ndarray, array.dtype, array.data
        return tuple([make(shape, dtype, data + nbytes) for nbytes, shape in pieces])

    def borrow_slice(self, array: cupy.ndarray, start: int, stop: int) -> cupy.ndarray:
        """Elements of a contiguous array, whose memory they do not keep: it has to live."""
        itemsize, data = array.dtype.itemsize, array.data
        nbytes = (stop - start) * itemsize
        memory = cupy.cuda.UnownedMemory(data.ptr + start * itemsize, nbytes, None, data.device_id)
        return cupy.ndarray((stop - start,), array.dtype, cupy.cuda.MemoryPointer(memory, 0))

    def maker(self, spec: Spec, device: int) -> Callable[[], cupy.ndarray]:
        """Return a function that makes an uninitialised array, most often on the current device."""
        make, shape, dtype = cupy.ndarray, spec.shape, spec.dtype
        current = cupy.cuda.runtime.getDevice
        return lambda: make(shape, dtype) if current() == device else self.empty(spec, device)

    def permute(self, array: cupy.ndarray, axes: Sequence[int]) -> cupy.ndarray:
        """A view of the array's memory with its dimensions in another order."""
        return array.transpose(axes)

    def of_host(self, array: HostArray) -> object:
        """A result on the host: NumPy's."""
        return array

    def empty(self, spec: Spec, device: int) -> cupy.ndarray:
        """An uninitialised array from CuPy's pool."""
        with self.on(device):
            return cupy.empty(spec.shape, spec.dtype)

    def zeros(self, nbytes: int, device: int) -> cupy.ndarray:
        """A zeroed byte buffer from CuPy's pool."""
        with self.on(device):
            return cupy.zeros(nbytes, np.uint8)

    def fill(self, array: cupy.ndarray, nbytes: int, byte: int) -> None:
        """Fill by the driver's memset, which a capture records too."""
        if nbytes:
            array.data.memset_async(byte, nbytes, cupy.cuda.get_current_stream())

    def clear_at(self, address: int, nbytes: int, stream: int) -> None:
        """Clear by the driver's memset."""
        cupy.cuda.runtime.memsetAsync(address, 0, nbytes, stream)

    def to_host(self, array: cupy.ndarray) -> HostArray:
        """A copy in NumPy's memory; waits for the array's stream."""
        return array.get()  # type: ignore[no-any-return]

    def from_host(self, array: HostArray) -> cupy.ndarray:
        """A copy on the current device."""
        return cupy.asarray(array)

    def overwrite(self, array: cupy.ndarray, source: HostArray) -> None:
        """Copy the elements in the order of the current stream."""
        with self.on(array.data.device_id):
            array.set(source)

    @functools.cache  # noqa: B019 - there is one backend in a process
    def device(self, index: int) -> Device:
        """The properties planning may use."""
        properties = cupy.cuda.runtime.getDeviceProperties(index)
        capability = properties["major"], properties["minor"]
        return Device(
            properties["multiProcessorCount"],
            capability,
            properties["sharedMemPerBlockOptin"],
            has_warpgroups(capability),
        )

    def is_current(self, device: int) -> bool:
        """Return True if launches and allocations go to `device` as things stand."""
        return cupy.cuda.runtime.getDevice() == device  # type: ignore[no-any-return]

    def on(self, device: int) -> contextlib.AbstractContextManager[object]:
        """A context in which `device` is current."""
        return cupy.cuda.Device(device)  # type: ignore[no-any-return]

    def stream(self, device: int) -> Hashable:
        """The device's current stream, as a key; every thread has its own per-thread stream."""
        stream = cupy.cuda.get_current_stream(device).ptr
        return (stream, threading.get_ident()) if stream == PER_THREAD else stream

    def stream_address(self, device: int) -> int:
        """Address of CuPy's current stream."""
        return cupy.cuda.get_current_stream(device).ptr  # type: ignore[no-any-return]

    def stream_of(self, device: int) -> Callable[[], int]:
        """Return a function that gives that address."""
        return functools.partial(self.stream_address, device)

    def is_alone(self, device: int) -> bool:
        """Return True if this machine has one device, which is always current."""
        return cupy.cuda.runtime.getDeviceCount() == 1  # type: ignore[no-any-return]

    def capturing(self, device: int) -> bool:
        """Return True if the device's current stream is being captured into a graph."""
        return streams.is_capturing(cupy.cuda.get_current_stream(device))

    def keeps_memory(self) -> bool:
        """Return True if the captured graph owns what is allocated, and not CuPy's pool."""
        return graphs.owns_memory()

    def current_device(self) -> int:
        """The number of the current device."""
        return cupy.cuda.runtime.getDevice()  # type: ignore[no-any-return]

    def work(self, name: str) -> Callable[..., None]:
        """The function of WORK with this name."""
        return WORK[name]

    def record(self) -> object:
        """A CUDA event."""
        event = cupy.cuda.Event(disable_timing=True)
        event.record(cupy.cuda.get_current_stream())
        return event

    def wait(self, mark: cupy.cuda.Event | None) -> None:
        """The stream waits, the host does not."""
        if mark is not None:
            cupy.cuda.get_current_stream().wait_event(mark)

    def load(self, source: KernelSource, options: tuple[str, ...]) -> Module:
        """Compile for the current device, through CuPy's disk cache."""
        options += (*header_options(), *thread_options())
        module = cupy.RawModule(code=source.code, options=options)
        try:
            with usable_cache():
                module.compile()
        except cupy.cuda.compiler.CompileException as error:
            raise CompileError(
                f"{source.name}.cu did not compile for {cupy.cuda.Device().compute_capability} "
                f"with {' '.join(options)}:\n{error}",
                log=str(error),
            ) from None
        return _Functions(module)


class _Functions:
    """CuPy's bare driver functions: a RawKernel around them costs a look-up at each call."""

    def __init__(self, module: cupy.RawModule) -> None:
        self._module = module

    def get_function(self, name: str) -> Kernel:
        return self._module.get_function(name).kernel  # type: ignore[no-any-return]

    def allow_shared(self, function: cupy.cuda.Function, nbytes: int) -> None:
        driver = cupy.cuda.driver
        static_nbytes = driver.funcGetAttribute(STATIC_SHARED, function.ptr)
        driver.funcSetAttribute(function.ptr, MAX_DYNAMIC_SHARED, nbytes - static_nbytes)


def _copy(source: cupy.ndarray, target: cupy.ndarray) -> None:
    """The bytes of one array into another, by the copy engine."""
    runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream().ptr
    kind = runtime.memcpyDeviceToDevice
    runtime.memcpyAsync(target.data.ptr, source.data.ptr, source.nbytes, kind, stream)


def _call(function: Callable[..., None], *args: object) -> None:
    """A callable that queues work of its own on the current stream."""
    function(*args)


WORK: dict[str, Callable[..., None]] = {"call": _call, "copy": _copy}


BACKEND = CudaBackend()
