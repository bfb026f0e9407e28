# SPDX-License-Identifier: MIT
"""Numbers that a GPU writes into the host's memory, to be read when they are there."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any, NamedTuple

import torch
from torch import Tensor

NUMBERS = 4
ROWS = 1024  # that are made at a time


class Row(NamedTuple):
    """Page-locked memory for float32 numbers, which the GPU knows by the same address."""

    numbers: Tensor
    address: int
    event: Any  # recorded behind what writes them


class Rows:
    """The rows of a GPU, which are used again and never freed: queued work may still write them."""

    def __init__(self) -> None:
        self._free: deque[Row] = deque()
        self._used: deque[Row] = deque()

    def take(self) -> Row:
        """One that nothing writes to."""
        self._look()
        while True:
            try:
                return self._free.pop()
            except IndexError:
                self._free.extend(_made())

    def give_back(self, row: Row) -> None:
        """Nobody will read it."""
        self._used.append(row)

    def _look(self) -> None:
        """Free the oldest whose work is done; each is another thread's or ours, never both's."""
        for _ in range(len(self._used)):
            try:
                row = self._used.popleft()
            except IndexError:
                return
            if not row.event.query():
                self._used.appendleft(row)
                return
            self._free.append(row)


def _made() -> list[Row]:
    numbers = torch.empty((ROWS, NUMBERS), dtype=torch.float32, pin_memory=True)
    return [Row(row, row.data_ptr(), torch.cuda.Event()) for row in numbers.unbind()]


_ROWS: defaultdict[int, Rows] = defaultdict(Rows)  # by GPU: an event is one GPU's


class Late:
    """Numbers to come, with the event behind them."""

    __slots__ = ("_index", "_is_recorded", "_n", "_row", "_rows")

    def __init__(self, index: int, n: int = NUMBERS) -> None:
        self._index, self._n, self._rows = index, n, _ROWS[index]
        self._is_recorded = False
        self._row = self._rows.take()

    def __del__(self) -> None:
        if self._is_recorded:  # else nobody knows when it is written
            self._rows.give_back(self._row)

    def data_ptr(self) -> int:
        """Where a kernel writes them."""
        return self._row.address

    def copy(self, numbers: Tensor) -> None:
        """Queue a copy of a device's numbers."""
        self._row.numbers[: self._n].copy_(numbers, non_blocking=True)

    def record(self) -> None:
        """What writes them has been queued on the current stream."""
        self._row.event.record(torch.cuda.current_stream(self._index))
        self._is_recorded = True

    def query(self) -> bool:
        """Whether they are there."""
        return bool(self._row.event.query())

    def synchronize(self) -> None:
        """Wait for them."""
        self._row.event.synchronize()

    def tolist(self) -> list[float]:
        """The numbers, once they are there."""
        numbers: list[float] = self._row.numbers.tolist()
        return numbers[: self._n]


def late(numbers: Tensor | Late, index: int) -> tuple[Any, Any]:
    """Numbers that have been queued, and the event behind them; the host's own, and None."""
    if index < 0:
        return numbers, None
    if not isinstance(numbers, Late):
        queued, numbers = numbers, Late(index, len(numbers))
        numbers.copy(queued)
    numbers.record()
    return numbers, numbers
