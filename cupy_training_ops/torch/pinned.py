# SPDX-License-Identifier: MIT
"""Pinned readback: a GPU writes numbers to page-locked memory, the host reads them later."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .coding import raw_stream

NUMBERS = 4  # float32 numbers of a row
ROWS = 1024  # allocated at a time


class Row:
    """Page-locked memory for NUMBERS float32 numbers, at the same address for the GPU."""

    __slots__ = ("address", "event", "numbers", "tolist")

    def __init__(self, numbers: Tensor, address: int, event: torch.cuda.Event) -> None:
        self.numbers, self.address = numbers, address
        self.event = event  # recorded after the writes
        self.tolist: Callable[[], Any] = memoryview(
            numbers.numpy()
        ).tolist  # faster than Tensor.tolist


class Rows:
    """A pool of rows of a GPU; they are never freed, as queued work may still write them."""

    def __init__(self) -> None:
        self._free: deque[Row] = deque()
        self._used: deque[Row] = deque()

    def take(self) -> Row:
        """Take a row that no queued work writes."""
        try:
            return self._free.pop()
        except IndexError:
            self._free_finished()
        while True:
            try:
                return self._free.pop()
            except IndexError:
                self._free.extend(_allocate_rows())

    def give_back(self, row: Row) -> None:
        """Return a row to the pool; it is free once its event is done."""
        self._used.append(row)

    def _free_finished(self) -> None:
        """Free the oldest rows whose events are done; threads pop different rows."""
        for _ in range(len(self._used)):
            try:
                row = self._used.popleft()
            except IndexError:
                return
            if not row.event.query():
                self._used.appendleft(row)
                return
            self._free.append(row)


def _allocate_rows() -> list[Row]:
    numbers = torch.empty((ROWS, NUMBERS), dtype=torch.float32, pin_memory=True)
    return [Row(row, row.data_ptr(), torch.cuda.Event()) for row in numbers.unbind()]


_ROWS: defaultdict[int, Rows] = defaultdict(Rows)  # by GPU, as an event belongs to one
_STREAMS: dict[tuple[int, int], object] = {}  # by (GPU, address of the stream)


class PinnedNumbers:
    """n numbers, NUMBERS at most, that queued work of the GPU `index` will write, and the event
    after it."""

    __slots__ = ("_index", "_is_recorded", "_n", "_row", "event")

    def __init__(self, index: int, n: int = NUMBERS) -> None:
        self._index, self._n, self._is_recorded = index, n, False
        self._row = row = _ROWS[index].take()
        self.event = row.event

    def __del__(self) -> None:
        if self._is_recorded:  # else the row is never reused, as its writes may be pending
            _ROWS[self._index].give_back(self._row)

    def data_ptr(self) -> int:
        """Return the address that a kernel writes the numbers to."""
        return self._row.address

    def copy(self, numbers: Tensor) -> None:
        """Queue a copy of a device's n numbers to the row."""
        self._row.numbers[: self._n].copy_(numbers, non_blocking=True)

    def record(self) -> None:
        """Record the event on the current stream, after the work that writes the numbers."""
        self.event.record(_current_stream(self._index))
        self._is_recorded = True

    def tolist(self) -> list[float]:
        """Return the numbers; call it after the event."""
        return self._row.tolist()[: self._n]  # type: ignore[no-any-return]


def _current_stream(index: int) -> torch.cuda.Stream:
    """Return PyTorch's current stream of a GPU, as a cached object: making one takes long."""
    if raw_stream is None:
        return torch.cuda.current_stream(index)
    key = index, raw_stream(index)
    return _STREAMS.get(key) or _STREAMS.setdefault(key, torch.cuda.current_stream(index))


def read_later(numbers: Tensor | PinnedNumbers, index: int) -> tuple[object, object]:
    """Return (numbers, event after which `tolist` reads them); the event is None on the host.

    index: of the GPU whose current stream writes the numbers, -1 for the host.
    """
    if index < 0:
        return numbers, None
    if not isinstance(numbers, PinnedNumbers):
        queued, numbers = numbers, PinnedNumbers(index, len(numbers))
        numbers.copy(queued)
    numbers.record()
    return numbers, numbers.event


def copy_to_host(numbers: Tensor, index: int) -> tuple[Tensor, object]:
    """Return (copy on the host, event after which it can be read), for numbers of any dtype.

    index: of the GPU whose current stream writes the numbers; -1 for the host, where this returns
    (numbers, None).
    """
    if index < 0:
        return numbers, None
    copy = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    copy.copy_(numbers, non_blocking=True)
    return copy, torch.cuda.current_stream(index).record_event()
