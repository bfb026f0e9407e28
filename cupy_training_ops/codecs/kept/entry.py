# SPDX-License-Identifier: MIT
"""What is held of an array between forward and backward, how long it is, and how much is held."""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from ...forks import Locked


class Account(Locked):
    """Bytes that are held, and that were at most; from any thread."""

    def __init__(self) -> None:
        super().__init__()
        self.held = self.peak = 0

    def add(self, nbytes: int) -> None:
        """More is held, or less. A finalizer calls it: nothing under the lock may free codes."""
        with self.lock:
            self.held += nbytes
            if self.held > self.peak:
                self.peak = self.held


class Entry:
    """One array: codes, or the array itself; both while nobody knows whether the codes do.

    Most have what the class has, which takes no time.
    """

    account: Account
    code: Any = None
    original: Any = None
    waiting: tuple[Any, ...] = ()  # decisions to come
    place: Hashable = None  # among the arrays of a step: what was decided holds for later steps

    def shorten(self, nbytes: int) -> None:
        """Give back the memory behind the codes."""
        released = self.code.nbytes - nbytes
        if released:
            self.code = self.cut(nbytes)
            self.account.add(-released)

    def cut(self, nbytes: int) -> object:
        """A copy of so many bytes of the codes."""
        raise NotImplementedError

    def failed(self, waiting: Any, lack: str) -> None:
        """Hold the array alone: the codes are not good enough."""
        raise NotImplementedError


class Lengths:
    """Sparse codes in memory for the longest ones, until the device has said how long they are.

    The host waits for that when the next such codes are made: what was queued since keeps the
    device busy.
    """

    def __init__(self) -> None:
        self._waiting: dict[object, deque[tuple[Any, ...]]] = {}  # by stream

    def add(
        self, stream: object, entry: Entry, tell: Callable[[int], None], length: Any, event: Any
    ) -> None:
        """New codes, which may not be made yet; `tell` is told their length, whoever has them."""
        waiting = self._waiting.setdefault(stream, deque())
        waiting.append((weakref.ref(entry), tell, length, event))
        if event is None:
            self.trim(stream)

    def trim(self, stream: object) -> None:
        """Wait for the lengths of a stream's codes, and give back what is behind them."""
        waiting = self._waiting.get(stream)
        while waiting:
            with contextlib.suppress(IndexError):  # another thread took the last
                reference, tell, length, event = waiting.popleft()
                if event is not None:
                    event.synchronize()
                (nbytes,) = length.tolist()
                tell(nbytes)
                if (entry := reference()) is not None:
                    entry.shorten(nbytes)

    def trim_all(self) -> None:
        """The same of all streams."""
        for stream in list(self._waiting):
            self.trim(stream)
