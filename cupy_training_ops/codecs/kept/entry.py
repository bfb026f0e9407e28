# SPDX-License-Identifier: MIT
"""What is held of an array between forward and backward, and how many bytes are held in all."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
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
            self._add(nbytes)

    def _add(self, nbytes: int) -> None:
        self.held += nbytes
        if self.held > self.peak:
            self.peak = self.held


def sums(rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> dict[str, int]:
    """Of the rows of a report."""
    rows = list(rows)
    return {column: sum(row[column] for row in rows) for column in columns}


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

    def cut(self, nbytes: int) -> Any:
        """A copy of so many bytes of the codes."""
        raise NotImplementedError

    def failed(self, waiting: Any, lack: str) -> None:
        """Hold the array alone: the codes are not good enough."""
        raise NotImplementedError
