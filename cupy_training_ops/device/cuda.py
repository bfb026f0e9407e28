# SPDX-License-Identifier: MIT
"""The backend of CuPy's arrays, with CuPy's streams, memory pool and compiler."""

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
from .compiler import has_warpgroups, header_options, logged, thread_options, usable_cache

STATIC_SHARED, MAX_DYNAMIC_SHARED = 1, 8  # CUfunction_attribute
PER_THREAD = cupy.cuda.Stream.ptds.ptr  # one handle for the default streams of all threads


class _Driver:
    """CuPy's binding of the CUDA driver."""

    launch = staticmethod(cupy.cuda.driver.launchKernel)

    def mend(self, error: Exception) -> bool:
        """Make this thread's CUDA context if it was missing, as `error` says; return True if so."""
        if "CUDA_ERROR_INVALID_CONTEXT" not in str(error):
            return False
        cupy.cuda.runtime.free(0)  # any call that needs a context makes it
        return True

    def head(
        self, function: Any, grid: Extents, block: Extents, nbytes: int, _: Sequence[Dtype]
    ) -> tuple[int, ...]:
        """Return (function handle, 3 extents of the grid, 3 of the block, shared bytes)."""
        ones = 1, 1
        return (function.ptr, *(*grid, *ones)[:3], *(*block, *ones)[:3], nbytes)


class CudaBackend:
    """The backend of all CUDA devices, which are identified by their numbers."""

    name = "cuda"
    runs_kernels = True
    loads_at_once = True
    has_tensors = False
    driver: Driver = _Driver()

    def info(self, array: cupy.ndarray) -> Info:
        """Return (backend, dtype, shape, is aligned to 16 bytes, strides or None, device)."""
        data = array.data
        return (
            self,
            array.dtype,
            array.shape,
            data.ptr % 16 == 0,
            # `flags` would make an object, in 0.5 microseconds.
            None if array._c_contiguous else array.strides,
            data.device_id,
        )

    def infos(self, arrays: Sequence[cupy.ndarray | None]) -> list[Info | None]:
        """Return the tuple of `info` for each array, None for None; inlined for speed."""
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
        """Return the addresses of arrays, 0 for None."""
        return [0 if array is None else array.data.ptr for array in arrays]

    def states(self, arrays: Sequence[cupy.ndarray | None]) -> list[object]:
        """Return the shape of each array, all that may change of a CuPy array; None for None."""
        return [None if array is None else array.shape for array in arrays]

    def offset(self, array: cupy.ndarray, nbytes: int) -> int:
        """Return the address `nbytes` after the array's start."""
        return array.data.ptr + nbytes  # type: ignore[no-any-return]

    def views(self, array: cupy.ndarray, pieces: Sequence[Piece]) -> tuple[cupy.ndarray, ...]:
        """Return a view of a contiguous array for each piece (offset in bytes, shape)."""
        make, dtype, data = cupy.ndarray, array.dtype, array.data
        return tuple([make(shape, dtype, data + nbytes) for nbytes, shape in pieces])

    def borrow_slice(self, array: cupy.ndarray, start: int, stop: int) -> cupy.ndarray:
        """Return elements start:stop of a contiguous array: a view that does not own memory."""
        itemsize, data = array.dtype.itemsize, array.data
        nbytes = (stop - start) * itemsize
        memory = cupy.cuda.UnownedMemory(data.ptr + start * itemsize, nbytes, None, data.device_id)
        return cupy.ndarray((stop - start,), array.dtype, cupy.cuda.MemoryPointer(memory, 0))

    def maker(self, spec: Spec, device: int) -> Callable[[], cupy.ndarray]:
        """Return a function that allocates an array of this shape and dtype on a device.

        Fast if that is current.
        """
        make, shape, dtype = cupy.ndarray, spec.shape, spec.dtype
        current = cupy.cuda.runtime.getDevice
        return lambda: make(shape, dtype) if current() == device else self.empty(spec, device)

    def permute(self, array: cupy.ndarray, axes: Sequence[int]) -> cupy.ndarray:
        """Return a view with permuted dimensions."""
        return array.transpose(axes)

    def of_host(self, array: HostArray) -> object:
        """Return an output in host memory as the caller gets it: itself."""
        return array

    def empty(self, spec: Spec, device: int) -> cupy.ndarray:
        """Allocate an array from CuPy's pool."""
        with self.on(device):
            return cupy.empty(spec.shape, spec.dtype)

    def zeros(self, nbytes: int, device: int) -> cupy.ndarray:
        """Allocate a uint8 array of zeros from CuPy's pool."""
        with self.on(device):
            return cupy.zeros(nbytes, np.uint8)

    def fill(self, array: cupy.ndarray, nbytes: int, byte: int) -> None:
        """Queue a memset of the first `nbytes` bytes to `byte`, which a capture records too."""
        if nbytes:
            array.data.memset_async(byte, nbytes, cupy.cuda.get_current_stream())

    def clear_at(self, address: int, nbytes: int, stream: int) -> None:
        """Queue a memset of `nbytes` bytes at an address to 0, on the stream at an address."""
        cupy.cuda.runtime.memsetAsync(address, 0, nbytes, stream)

    def to_host(self, array: cupy.ndarray) -> HostArray:
        """Copy to NumPy; waits for the current stream."""
        return array.get()  # type: ignore[no-any-return]

    def from_host(self, array: HostArray) -> cupy.ndarray:
        """Copy to the current device."""
        return cupy.asarray(array)

    def overwrite(self, array: cupy.ndarray, source: HostArray) -> None:
        """Copy `source`, of the same shape, into the array on the current stream."""
        with self.on(array.data.device_id):
            array.set(source)

    @functools.cache  # noqa: B019 - there is one backend in a process
    def device(self, index: int) -> Device:
        """Return the properties of the device with this number on which plans depend."""
        properties = cupy.cuda.runtime.getDeviceProperties(index)
        capability = properties["major"], properties["minor"]
        return Device(
            properties["multiProcessorCount"],
            capability,
            properties["sharedMemPerBlockOptin"],
            has_warpgroups(capability),
        )

    def is_current(self, device: int) -> bool:
        """Return True if `device` is current."""
        return cupy.cuda.runtime.getDevice() == device  # type: ignore[no-any-return]

    def on(self, device: int) -> contextlib.AbstractContextManager[object]:
        """Return a context in which `device` is current."""
        return cupy.cuda.Device(device)  # type: ignore[no-any-return]

    def stream(self, device: int) -> Hashable:
        """Return a key of the device's current stream; per-thread streams differ by thread."""
        stream = cupy.cuda.get_current_stream(device).ptr
        return (stream, threading.get_ident()) if stream == PER_THREAD else stream

    def stream_address(self, device: int) -> int:
        """Return the address of CuPy's current stream."""
        return cupy.cuda.get_current_stream(device).ptr  # type: ignore[no-any-return]

    def stream_of(self, device: int) -> Callable[[], int]:
        """Return a function that returns `stream_address(device)`."""
        return functools.partial(self.stream_address, device)

    def is_alone(self, device: int) -> bool:
        """Return True if this machine has one device, which is always current."""
        return cupy.cuda.runtime.getDeviceCount() == 1  # type: ignore[no-any-return]

    def capturing(self, device: int) -> bool:
        """Return True if the device's current stream is being captured into a graph."""
        return streams.is_capturing(cupy.cuda.get_current_stream(device))

    def keeps_memory(self) -> bool:
        """Return True if a captured graph, not CuPy's pool, owns new memory."""
        return graphs.owns_memory()

    def current_device(self) -> int:
        """Return the number of the current device."""
        return cupy.cuda.runtime.getDevice()  # type: ignore[no-any-return]

    def work(self, name: str) -> Callable[..., None]:
        """Return the function that does a `Work` of this name: "call" or "copy"."""
        return WORK[name]

    def record(self) -> object:
        """Record a CUDA event on the current stream."""
        event = cupy.cuda.Event(disable_timing=True)
        event.record(cupy.cuda.get_current_stream())
        return event

    def wait(self, mark: cupy.cuda.Event | None) -> None:
        """Let the current stream wait for an event (None: nothing); the host does not wait."""
        if mark is not None:
            cupy.cuda.get_current_stream().wait_event(mark)

    def load(self, source: KernelSource, options: tuple[str, ...]) -> Module:
        """Return the module of a source text, compiled with slots' options (`slot_options`) for the
        current device, or from CuPy's disk cache."""
        options += (*header_options(), *thread_options())
        module = cupy.RawModule(code=source.code, options=options)
        try:
            with usable_cache(), logged(f"{source.name}.cu {' '.join(options)}"):
                module.compile()
        except cupy.cuda.compiler.CompileException as error:
            raise CompileError(
                f"{source.name}.cu did not compile for {cupy.cuda.Device().compute_capability} "
                f"with {' '.join(options)}:\n{error}",
                log=str(error),
            ) from None
        return _Functions(module)


class _Functions:
    """A module's functions without CuPy's RawKernel, whose calls cost a look-up each."""

    def __init__(self, module: cupy.RawModule) -> None:
        self._module = module

    def get_function(self, name: str) -> Kernel:
        return self._module.get_function(name).kernel  # type: ignore[no-any-return]

    def allow_shared(self, function: cupy.cuda.Function, nbytes: int) -> None:
        """Let launches have `nbytes` of shared memory, of which what is not static is dynamic."""
        driver = cupy.cuda.driver
        static_nbytes = driver.funcGetAttribute(STATIC_SHARED, function.ptr)
        driver.funcSetAttribute(function.ptr, MAX_DYNAMIC_SHARED, nbytes - static_nbytes)


def _copy(source: cupy.ndarray, target: cupy.ndarray) -> None:
    """Queue a copy of one array's bytes to another."""
    runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream().ptr
    kind = runtime.memcpyDeviceToDevice
    runtime.memcpyAsync(target.data.ptr, source.data.ptr, source.nbytes, kind, stream)


def _call(function: Callable[..., None], *args: object) -> None:
    """Call a function that queues its own work on the current stream."""
    function(*args)


WORK: dict[str, Callable[..., None]] = {"call": _call, "copy": _copy}


BACKEND = CudaBackend()
