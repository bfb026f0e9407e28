# SPDX-License-Identifier: MIT
"""Side streams for work concurrent with the caller's, and events by number.

The memory pool reuses freed memory on the stream of its allocation without waiting. So an array
may be freed only after that stream waits for all others that use it.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np

from ..forks import InChild

T = TypeVar("T")
RELAXED = 2  # CUstreamCaptureMode
FIRST = -1000  # a stream's priority; CUDA clamps it to the highest
Mark = object  # an event that was recorded on the side stream; None on the host


@contextlib.contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    """Make a stream CuPy's current one inside, and restore the previous one.

    CuPy's own context does not restore a stream that `use()` made current.
    """
    before = sys.modules["cupy"].cuda.get_current_stream()
    try:
        with stream:
            yield
    finally:
        before.use()


def allow_queries() -> None:
    """Let this thread query events while another one captures a graph."""
    mode = ctypes.c_int(RELAXED)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def is_capturing(stream: Any) -> bool:
    """Return True if a stream is being captured; default streams never are."""
    return stream.ptr not in (0, 1) and bool(stream.is_capturing())


class Streams:
    """The caller's current stream and a side stream. This base class, for the host, has none:
    work is done when a call returns."""

    def current(self) -> object:
        """Return the caller's current stream."""

    def fork(self) -> None:
        """Let the side stream wait for the caller's."""

    def side_after(self, stream: int) -> Any:
        """Let the side stream wait for a stream, by its address; return it."""

    def on_side(self, function: Callable[[], T]) -> T:
        """Call a function with the side stream current, and return its result."""
        return function()

    def mark(self) -> Mark:
        """Record an event on the side stream, and return it; here None."""

    def join(self, stream: object, mark: Mark) -> None:
        """Let `stream` wait for a mark, an event of `mark`."""

    def copy_to_host(self, numbers: Any) -> tuple[Any, Any]:
        """Copy a small array on the side stream; return (NumPy array, event or None).

        The copy is complete once event.query() is True; None: it is.
        """
        return numbers, None


class Cuda(Streams):
    """CuPy's current stream of one device, and a side stream."""

    def __init__(self, device: int, first: bool = False) -> None:
        """Make a side stream on a device; first: of the highest priority."""
        self._cuda = sys.modules["cupy"].cuda
        self._device = device
        with self._cuda.Device(device):
            self._side = self._cuda.Stream(non_blocking=True, priority=FIRST if first else None)
        self._event: Any = None
        self._under_way: deque[tuple[Any, Any]] = deque()  # (copy, event)

    def current(self) -> object:
        """Return CuPy's current stream of this thread."""
        return self._cuda.get_current_stream(self._device)

    def fork(self) -> None:
        """Let the side stream wait for the caller's, by an event."""
        self._side.wait_event(self._record(self.current()))

    def side_after(self, stream: int) -> Any:
        """Let the side stream wait for the stream at an address; return the side stream.

        One event is recorded again each time: waits that were queued before stay valid.
        """
        runtime = self._cuda.runtime
        with self._cuda.Device(self._device):  # stream 0 is the current device's
            self._event = self._event or self._cuda.Event(disable_timing=True)
            runtime.eventRecord(self._event.ptr, stream)
            runtime.streamWaitEvent(self._side.ptr, self._event.ptr)
        return self._side

    def on_side(self, function: Callable[[], T]) -> T:
        """Call a function on the side stream, which its allocations belong to."""
        with self._cuda.Device(self._device), on_stream(self._side):
            return function()

    def mark(self) -> Mark:
        """Record an event on the side stream, and return it."""
        return self._record(self._side)

    def join(self, stream: Any, mark: Any) -> None:
        """Let a stream wait for an event; the host does not wait."""
        stream.wait_event(mark)

    def copy_to_host(self, numbers: Any) -> tuple[Any, Any]:
        """Queue a copy of a small array to page-locked memory; return (NumPy array, event)."""
        memory, runtime = self._cuda.alloc_pinned_memory(numbers.nbytes), self._cuda.runtime
        copied = memory.ptr, numbers.data.ptr, numbers.nbytes, runtime.memcpyDeviceToHost
        with self._cuda.Device(self._device):
            runtime.memcpyAsync(*copied, self._side.ptr)
        mark = self._record(self._side)  # `query` is PyTorch's name for `done`
        event = SimpleNamespace(query=lambda: bool(mark.done), synchronize=mark.synchronize)
        # Keeps copies from the pool as long as the device writes to them.
        while self._under_way and self._under_way[0][1].query():
            self._under_way.popleft()
        self._under_way.append((np.frombuffer(memory, numbers.dtype, numbers.size), event))
        return self._under_way[-1]

    def _record(self, stream: object) -> Any:
        """Record a new event on a stream, and return it."""
        with self._cuda.Device(self._device):
            event = self._cuda.Event(disable_timing=True)
            event.record(stream)
        return event


MAX_EVENTS = 4096
NO_EVENT = -1


class Events(InChild):
    """Marks (CUDA events) by the caller's numbers: `record` stores one, `take` waits for and takes
    it, which may be in another thread."""

    def __init__(self) -> None:
        super().__init__()
        self.renew()

    def renew(self) -> None:
        """Forget marks in a forked child: they are of the parent's streams."""
        self._changed = threading.Condition()
        self._marks: dict[int, object] = {}

    def record(self, identifier: int, mark: Callable[[], object]) -> bool:
        """Store mark() under a number; return False, without a call, if that is in use."""
        with self._changed:
            if identifier in self._marks:
                return False
            self._marks[identifier] = mark()
            self._changed.notify_all()
            return True

    def take(self, identifier: int, timeout: float) -> object:
        """Wait until a mark has this number (`identifier`); remove and return it.

        TimeoutError if there is none within `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: identifier in self._marks, timeout):
                raise TimeoutError
            return self._marks.pop(identifier)


EVENTS = Events()
