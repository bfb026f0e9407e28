# SPDX-License-Identifier: MIT
"""Sparse codes, whose length only the device knows at first."""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .account import Account
from .coding import Stream
from .kept import Kept
from .kinds import Kind


class Roomy:
    """Sparse codes in memory for the longest ones, until the device has said how long they are.

    The host waits for that at the next such tensor of the stream: what was queued since keeps the
    GPU busy.
    """

    def __init__(self, account: Account, current: Callable[[int], Stream]) -> None:
        self._account, self._current = account, current
        self._waiting: dict[Stream, deque[tuple[weakref.ref[Kept], Kind, Tensor, Any]]] = {}

    def add(self, kept: Kept) -> None:
        """New codes, which may not be made yet."""
        assert kept.code is not None
        length, event = on_host(kept.code[:8].view(torch.int64), kept.kind.look.index)
        waiting = self._waiting.setdefault(kept.stream, deque())
        waiting.append((weakref.ref(kept), kept.kind, length, event))
        if event is None:
            self.shorten(kept.stream)

    def shorten(self, stream: Stream) -> None:
        """Wait for the lengths of a stream's codes, and give back what is behind them."""
        waiting = self._waiting.get(stream)
        while waiting:
            with contextlib.suppress(IndexError):  # another thread took the last
                reference, kind, length, event = waiting.popleft()
                if event is not None:
                    event.synchronize()
                nbytes, kept = int(length), reference()
                self._account.shortened(kind, kind.coding.code_nbytes - nbytes)
                if kept is not None and stream is self._current(kind.look.index):
                    kept.shorten(nbytes)

    def shorten_all(self) -> None:
        """The same of all streams; memory goes back only on the current one."""
        for stream in list(self._waiting):
            self.shorten(stream)


def on_host(numbers: Tensor, index: int) -> tuple[Tensor, Any]:
    """A copy that will be in page-locked memory, and the event after it; the host's own as is."""
    if index < 0:
        return numbers, None
    copy = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    copy.copy_(numbers, non_blocking=True)
    return copy, torch.cuda.current_stream(index).record_event()
