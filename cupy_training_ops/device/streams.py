# SPDX-License-Identifier: MIT
"""Work beside the caller's stream, on a GPU on a stream of its own, and events by number.

Memory belongs to the stream that it was allocated on, and the pool hands it out again on that
stream without waiting. So an array may be let go only after its stream waits for all others that
use it.
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
FIRST = -1000  # a stream's priority, which CUDA cuts to its highest
Mark = object  # what was queued beside the caller's stream so far


@contextlib.contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    """CuPy's current stream is this one inside, and behind it the one before.

    Left alone, CuPy's own context forgets a stream that `use()` made current.
    """
    before = sys.modules["cupy"].cuda.get_current_stream()
    try:
        with stream:
            yield
    finally:
        before.use()


def allow_queries() -> None:
    """Let this thread ask for events while another one captures a graph, in whatever mode."""
    mode = ctypes.c_int(RELAXED)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def is_capturing(stream: Any) -> bool:
    """Return True if work on it goes into a graph; CUDA cannot say it of default streams."""
    return stream.ptr not in (0, 1) and bool(stream.is_capturing())


class Streams:
    """The caller's stream, which may be another at each call, and the one beside it.

    Of NumPy's arrays there are none: what is called is done when it returns.
    """

    def current(self) -> object:
        """The caller's stream as it is now."""

    def fork(self) -> None:
        """Let what is queued beside wait for all on the caller's stream so far."""

    def behind(self, stream: int) -> Any:
        """The stream beside, which waits for what is queued at this address of one so far."""

    def beside(self, function: Callable[[], T]) -> T:
        """The result of a function that queues its work beside."""
        return function()

    def mark(self) -> Mark:
        """Mark what is queued beside so far."""

    def join(self, stream: object, mark: Mark) -> None:
        """Let what is queued on a stream from here on wait for a mark."""

    def copy_to_host(self, numbers: Any) -> tuple[Any, Any]:
        """Return a few numbers that were queued beside: (NumPy array, event behind it or None)."""
        return numbers, None


class Cuda(Streams):
    """CuPy's current stream of one device, and one of our own.

    first: its blocks come before those of other streams that wait for room.
    """

    def __init__(self, device: int, first: bool = False) -> None:
        self._cuda = sys.modules["cupy"].cuda
        self._device = device
        with self._cuda.Device(device):
            self._side = self._cuda.Stream(non_blocking=True, priority=FIRST if first else None)
        self._event: Any = None
        self._under_way: deque[tuple[Any, Any]] = deque()  # to the host, with the events behind

    def current(self) -> object:
        """CuPy's current stream of this thread."""
        return self._cuda.get_current_stream(self._device)

    def fork(self) -> None:
        """Let the stream beside wait for the caller's so far, by an event."""
        self._side.wait_event(self._record(self.current()))

    def behind(self, stream: int) -> Any:
        """Wait by one event, recorded anew: earlier waits are for its earlier records."""
        runtime = self._cuda.runtime
        with self._cuda.Device(self._device):  # whose default stream 0 is
            self._event = self._event or self._cuda.Event(disable_timing=True)
            runtime.eventRecord(self._event.ptr, stream)
            runtime.streamWaitEvent(self._side.ptr, self._event.ptr)
        return self._side

    def beside(self, function: Callable[[], T]) -> T:
        """Call a function on the stream beside, which memory that it allocates belongs to."""
        with self._cuda.Device(self._device), on_stream(self._side):
            return function()

    def mark(self) -> Mark:
        """Record an event behind what is queued beside."""
        return self._record(self._side)

    def join(self, stream: Any, mark: Any) -> None:
        """Let a stream wait for an event; the host does not wait."""
        stream.wait_event(mark)

    def copy_to_host(self, numbers: Any) -> tuple[Any, Any]:
        """Queue a copy of a few numbers to page-locked memory; return it, and the event behind."""
        memory, runtime = self._cuda.alloc_pinned_memory(numbers.nbytes), self._cuda.runtime
        copied = memory.ptr, numbers.data.ptr, numbers.nbytes, runtime.memcpyDeviceToHost
        with self._cuda.Device(self._device):
            runtime.memcpyAsync(*copied, self._side.ptr)
        mark = self._record(self._side)  # with PyTorch's name of the question whether it is over
        event = SimpleNamespace(query=lambda: bool(mark.done), synchronize=mark.synchronize)
        # The pool must not hand out what the device still writes to, whoever reads it.
        while self._under_way and self._under_way[0][1].query():
            self._under_way.popleft()
        self._under_way.append((np.frombuffer(memory, numbers.dtype, numbers.size), event))
        return self._under_way[-1]

    def _record(self, stream: object) -> Any:
        with self._cuda.Device(self._device):
            event = self._cuda.Event(disable_timing=True)
            event.record(stream)
        return event


MAX_EVENTS = 4096
NO_EVENT = -1


class Events(InChild):
    """Marks by the number of an event, until somebody waits for it.

    A mark says where in its stream the event was recorded.
    """

    def __init__(self) -> None:
        super().__init__()
        self.renew()

    def renew(self) -> None:
        """Forget what was recorded: marks are of the parent's streams in a forked child."""
        self._changed = threading.Condition()
        self._marks: dict[int, object] = {}

    def record(self, identifier: int, mark: Callable[[], object]) -> bool:
        """Keep the mark of an event; return False, without calling `mark`, if it has one."""
        with self._changed:
            if identifier in self._marks:
                return False
            self._marks[identifier] = mark()
            self._changed.notify_all()  # who waits for another number waits on
            return True

    def take(self, identifier: int, timeout: float) -> object:
        """Wait until an event has been recorded, and remove and return its mark.

        TimeoutError if it is not recorded within `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: identifier in self._marks, timeout):
                raise TimeoutError
            return self._marks.pop(identifier)


EVENTS = Events()
