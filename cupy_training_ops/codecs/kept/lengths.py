# SPDX-License-Identifier: MIT
"""Sparse codes, whose length only the device knows at first."""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from .entry import Entry


class Lengths:
    """Sparse codes in memory for the longest ones, until the device has said how long they are.

    The host waits for that when the next such codes are made: what was queued since keeps the
    device busy.
    """

    def __init__(self) -> None:
        self._waiting: dict[Any, deque[tuple[Any, ...]]] = {}  # by stream

    def add(
        self, stream: Any, entry: Entry, tell: Callable[[int], None], length: Any, event: Any
    ) -> None:
        """New codes, which may not be made yet; `tell` is told their length, whoever has them."""
        waiting = self._waiting.setdefault(stream, deque())
        waiting.append((weakref.ref(entry), tell, length, event))
        if event is None:
            self.trim(stream)

    def trim(self, stream: Any) -> None:
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
