# SPDX-License-Identifier: MIT
"""Where codes are made: on a GPU on a stream beside the caller's, on the host at once.

Memory belongs to the stream that it was allocated on, and the pool hands it out again on that
stream without waiting. So an array may be let go only after its stream waits for all others that
use it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ..backend import Array

Mark = Any  # what was queued beside the caller's stream so far


class Streams(Protocol):
    """The caller's stream, which may be another at each call, and the one beside it."""

    def current(self) -> Any:
        """The caller's stream as it is now."""

    def fork(self) -> None:
        """What is queued beside waits for all that is queued on the caller's stream so far."""

    def beside(self, function: Callable[[], Any]) -> Any:
        """The result of a function that queues its work beside."""

    def mark(self) -> Mark:
        """What is queued beside so far."""

    def join(self, stream: Any, mark: Mark) -> None:
        """What is queued on a stream from here on waits for what a mark stands for."""

    def read(self, code: Array) -> Callable[[], int]:
        """A number that was queued beside to stand in the first eight bytes; the call waits."""


class Host:
    """NumPy's arrays: what is called is done when it returns."""

    def current(self) -> None:
        """There are no streams."""

    def fork(self) -> None:
        """Everything is done."""

    def beside(self, function: Callable[[], Any]) -> Any:
        """The result."""
        return function()

    def mark(self) -> None:
        """Nothing is queued."""

    def join(self, stream: None, mark: None) -> None:
        """Nothing is queued."""

    def read(self, code: Array) -> Callable[[], int]:
        """The number."""
        return lambda: int(code[:8].view("<i8")[0])


class Cuda:
    """CuPy's current stream of one device, and one of our own."""

    def __init__(self, device: int) -> None:
        self._cuda = sys.modules["cupy"].cuda
        self._device = device
        with self._cuda.Device(device):
            self._side = self._cuda.Stream(non_blocking=True)

    def current(self) -> Any:
        """CuPy's, of this thread."""
        return self._cuda.get_current_stream(self._device)

    def fork(self) -> None:
        """By an event."""
        self._side.wait_event(self._recorded(self.current()))

    def beside(self, function: Callable[[], Any]) -> Any:
        """What the function allocates belongs to the stream beside, too."""
        with self._cuda.Device(self._device), self._side:
            return function()

    def mark(self) -> Any:
        """An event."""
        return self._recorded(self._side)

    def join(self, stream: Any, mark: Any) -> None:
        """The host does not wait."""
        stream.wait_event(mark)

    def read(self, code: Any) -> Callable[[], int]:
        """Copies eight bytes to page-locked memory, and waits for them when it is called."""
        memory = self._cuda.alloc_pinned_memory(8)
        runtime = self._cuda.runtime
        with self._cuda.Device(self._device):
            runtime.memcpyAsync(
                memory.ptr, code.data.ptr, 8, runtime.memcpyDeviceToHost, self._side.ptr
            )
        mark = self.mark()

        def number() -> int:
            mark.synchronize()
            return int(np.frombuffer(memory, np.uint64, 1)[0])

        return number

    def _recorded(self, stream: Any) -> Any:
        with self._cuda.Device(self._device):
            event = self._cuda.Event(disable_timing=True)
            event.record(stream)
        return event
