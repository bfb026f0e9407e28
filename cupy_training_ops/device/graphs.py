# SPDX-License-Identifier: MIT
"""Capture of CUDA graphs, side streams, and a check for copies that cannot be replayed."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import cupy

from ..errors import ProviderError
from .streams import on_stream

_MEMCPY, _HOST_FUNCTION = 1, 3  # CUgraphNodeType
_MEMORY_TYPE, _ON_DEVICE = 2, 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_MEMORYTYPE_DEVICE
_IN_ARRAY = 3  # CU_MEMORYTYPE_ARRAY
_state = threading.local()


def owns_memory() -> bool:
    """Return True if memory that this thread allocates lives as long as the captured graph."""
    return getattr(_state, "captured", None) is not None


def keep_alive(array: Any) -> None:
    """Let an array live as long as the graph that this thread captures, if it captures one."""
    captured = getattr(_state, "captured", None)
    if captured is not None:
        captured.arrays.append(array)


class Captured:
    """Result of a capture: CuPy's graph, None before the capture's end.

    arrays: from outside, which the graph reads, and which have to live as long.
    """

    def __init__(self) -> None:
        self.graph: Any = None
        self.arrays: list[Any] = []


@contextlib.contextmanager
def capture(stream: Any) -> Iterator[Captured]:
    """Capture what is queued inside on the current `stream` into a graph.

    The caller's allocator keeps memory alive. ProviderError if a replay would access host memory.
    """
    captured = Captured()
    with _without_collections():
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        _state.captured = captured
        try:
            yield captured
        except BaseException:
            with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):
                stream.end_capture()  # a broken capture raises, too
            raise
        else:
            captured.graph = stream.end_capture()
        finally:
            _state.captured = None
    n_copies = copies_with_the_host(captured.graph.graph)
    if n_copies:
        raise ProviderError(
            f"a captured graph: expected work on the device alone, got {n_copies} copies from or "
            f"to the host"
        )


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Disable garbage collection: memory that it frees in the driver would end a capture."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


_free: dict[int, list[SideStream]] = {}  # by device


def side_stream(owner: object) -> SideStream:
    """Return a side stream of the current device that nobody else has as long as `owner` lives.

    So captures of different owners have scratch memory of their own, which is one for each stream.
    """
    free = _free.setdefault(cupy.cuda.runtime.getDevice(), [])
    try:
        side = free.pop()
    except IndexError:
        side = SideStream()
    side.go_on(side.stream)  # after the work of the previous owner
    weakref.finalize(owner, free.append, side)
    return side


class SideStream:
    """A second stream, whose work is ordered with the current one's by events."""

    def __init__(self) -> None:
        self.stream = self._last = cupy.cuda.Stream(non_blocking=True)

    def go_on(self, stream: Any) -> None:
        """Let the owner continue on this stream, after its work on the previous one."""
        if self._last.ptr != stream.ptr:
            stream.wait_event(self._last.record())
        self._last = stream

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Make the side stream current inside the `with` block.

        Work inside waits for what was queued before, and later work waits for it.
        """
        outside = cupy.cuda.get_current_stream()
        self.stream.wait_event(outside.record())
        try:
            with on_stream(self.stream):
                yield
        finally:
            outside.wait_event(self.stream.record())


class _End(ctypes.Structure):
    """The fields of CUDA_MEMCPY3D for the source or the target; kind: CUmemorytype."""

    _fields_ = (
        ("x", ctypes.c_size_t), ("y", ctypes.c_size_t), ("z", ctypes.c_size_t),
        ("lod", ctypes.c_size_t), ("kind", ctypes.c_uint), ("host", ctypes.c_void_p),
        ("device", ctypes.c_uint64), ("array", ctypes.c_void_p), ("reserved", ctypes.c_void_p),
        ("pitch", ctypes.c_size_t), ("height", ctypes.c_size_t),
    )  # fmt: skip


class _Copy(ctypes.Structure):
    """CUDA_MEMCPY3D, the parameters of a memcpy node."""

    _fields_ = (
        ("source", _End), ("target", _End),
        ("width", ctypes.c_size_t), ("n_rows", ctypes.c_size_t), ("depth", ctypes.c_size_t),
    )  # fmt: skip


def copies_with_the_host(graph: int) -> int:
    """Count nodes that copy from or to host memory, or call a host function; graph: its handle."""
    driver = ctypes.CDLL("libcuda.so.1")
    count, kind = ctypes.c_size_t(), ctypes.c_int()
    handle = ctypes.c_void_p(graph)
    _check(driver.cuGraphGetNodes(handle, None, ctypes.byref(count)))
    if not count.value:
        return 0
    nodes = (ctypes.c_void_p * count.value)()
    _check(driver.cuGraphGetNodes(handle, nodes, ctypes.byref(count)))
    n_copies = 0
    for node in nodes:
        _check(driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)))
        is_copy = kind.value == _MEMCPY and _is_with_the_host(driver, node)
        n_copies += is_copy or kind.value == _HOST_FUNCTION
    return n_copies


def _is_with_the_host(driver: ctypes.CDLL, node: int | None) -> bool:
    """Return True if the source or target of a memcpy node is in host memory."""
    copy = _Copy()
    _check(driver.cuGraphMemcpyNodeGetParams(ctypes.c_void_p(node), ctypes.byref(copy)))
    return not all(
        end.kind == _IN_ARRAY or _is_on_device(driver, end.device or end.host)
        for end in (copy.source, copy.target)
    )


def _is_on_device(driver: ctypes.CDLL, address: int | None) -> bool:
    """Return True if an address is in device memory, as the driver says."""
    kind = ctypes.c_uint()
    place = ctypes.c_uint64(address or 0)
    status = driver.cuPointerGetAttribute(ctypes.byref(kind), ctypes.c_int(_MEMORY_TYPE), place)
    return status == 0 and kind.value == _ON_DEVICE


def _check(status: int) -> None:
    if status:
        raise ProviderError(f"a captured graph cannot be looked at: CUDA error {status}")
