# SPDX-License-Identifier: MIT
"""Originals that wait until it is decided whether their codes are good enough.

On the host the numbers of a guard are there at once. On a GPU the host reads them late: it waits
for the device only where too many bytes wait, or where the backward pass asks. What is decided does
not depend on when that is: what may come changes a decision only while no more than LIMIT bytes
came after the array.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from ...forks import Locked
from .entry import Entry
from .guards import Guard

LIMIT = 256 << 20  # bytes; more where one array is larger
SHARE = 24  # of a step's bytes, which may wait beside its codes: the host stays ahead of the device


class Waiting:
    """An entry with the numbers of its guard, which may be still to come.

    They are read by `tolist`, once `synchronize` of the event behind them has returned; `query`
    says whether it would at once. What is there has None for an event.
    """

    # Once numbers were read, and are None: what codes are not good enough for, and whether they are
    # where features are centred.
    lacking, features = "", False
    may_be_centred = False  # by what may come: codes that do for the rest may not do for that
    is_closed = False  # behind the limit: nothing that comes does

    def __init__(self, entry: Entry, guard: Guard, nbytes: int, numbers: Any, event: Any) -> None:
        self.entry: Callable[[], Any] = weakref.ref(entry)
        self.guard, self.nbytes, self.numbers, self.event = guard, nbytes, numbers, event

    def may_end(self, _newest: Waiting | None) -> bool:
        """Whether it can be decided while the newest comes."""
        return True

    def is_there(self) -> bool:
        """Whether the numbers can be read without a wait."""
        if self.event is not None and self.event.query():
            self.event = None
        return self.event is None

    def read(self) -> None:
        """Let the numbers be known; waits for the device."""
        if self.event is not None:
            self.event.synchronize()
        self.lacking, self.features = self.guard.lacking(self.numbers.tolist())
        self.numbers = self.event = None

    def lack(self) -> str:
        """What the codes are not good enough for; empty where they are."""
        if self.numbers is not None:
            self.read()
        return self.lacking


class Step:
    """Bytes of the arrays that one step gave a window, and of their codes."""

    __slots__ = ("code_nbytes", "nbytes")

    def __init__(self) -> None:
        self.nbytes = self.code_nbytes = 0

    def room_beside(self, step: Step) -> int:
        """What may wait in a later step, whose codes all come; early layers also need memory."""
        return self.nbytes // SHARE + max(self.code_nbytes - step.code_nbytes, 0) // 2


class Window(Locked):
    """The newest arrays that were encoded, a bounded number of bytes; and behind them closed ones,
    whose decision nothing changes any more, until the device has said what it is."""

    def __init__(self, limit: int = LIMIT, last: Step | None = None) -> None:
        """last: the step before the first, by which it is known how many codes are to come."""
        super().__init__()
        self._limit = limit
        self._open: deque[Waiting] = deque()
        self._unread: deque[Waiting] = deque()  # of those
        self._closed: deque[Waiting] = deque()
        self._open_nbytes = self._closed_nbytes = 0
        self._step, self.last = Step(), last or Step()
        self.most = 0  # bytes that waited
        self.decided: dict[
            Hashable, bool
        ] = {}  # by place in a step: whether codes were good enough

    def add(self, waiting: Waiting, entry: Entry, code_nbytes: int) -> None:
        """An entry with codes and original."""
        with self.lock:
            entry.waiting = (*entry.waiting, waiting) if entry.waiting else (waiting,)
            if waiting.event is None and waiting.may_end(waiting) and self._settle(waiting, entry):
                return
            nbytes = waiting.nbytes
            self._open.append(waiting)
            self._unread.append(waiting)
            self._open_nbytes += nbytes
            self._step.nbytes += nbytes
            self._step.code_nbytes += code_nbytes
            if nbytes > self._limit:
                self._limit = nbytes
            self._look(waiting)
            if self._closed or self._open_nbytes > self._limit:
                self._shrink(waiting)
            if self._open_nbytes + self._closed_nbytes > self.most:
                self.most = self._open_nbytes + self._closed_nbytes

    def end_step(self) -> None:
        """The next one is taken to be like it: so it is known how many codes are to come."""
        with self.lock:
            self._step, self.last = Step(), self._step

    def renewed(self) -> Window:
        """Another in its place, where the exception that ended a step may have come in here."""
        found = Window(self._limit, self.last)
        found.most, found.decided = self.most, self.decided
        return found

    def finish(self, entry: Entry) -> None:
        """Decide now: the backward pass asks."""
        with self.lock:
            for waiting in entry.waiting:
                self._decide(waiting, entry, waiting.lack())

    def finish_all(self) -> None:
        """Decide about all."""
        with self.lock:
            while self._open:
                self._close(self._open.popleft())
            while self._closed:
                self._finish_closed()
            self._unread.clear()

    def look(self) -> None:
        """Decide what can be decided without a wait."""
        with self.lock:
            self._look(None)

    def _look(self, newest: Waiting | None) -> None:
        """Let go of originals whose codes are known to be good for everything."""
        unread, closed = self._unread, self._closed
        while unread and (waiting := unread[0]).may_end(newest):
            entry = waiting.entry()
            if entry is not None and not waiting.is_there():
                break
            unread.popleft()
            if entry is not None:
                self._settle(waiting, entry)
        while closed and (closed[0].entry() is None or closed[0].is_there()):
            self._finish_closed()

    def _shrink(self, newest: Waiting) -> None:
        """Close what is behind the limit; wait where too many bytes do."""
        while self._open_nbytes > self._limit and self._open[0].may_end(newest):
            self._close(self._open.popleft())
        room = max(self._limit, self.last.room_beside(self._step))
        while self._closed and self._open_nbytes + self._closed_nbytes > room:
            self._finish_closed()

    def _close(self, waiting: Waiting) -> None:
        self._open_nbytes -= waiting.nbytes
        if waiting.entry() is None or waiting.is_there():
            self._finish(waiting)
            return
        waiting.is_closed = True
        self._closed.append(waiting)
        self._closed_nbytes += waiting.nbytes

    def _finish_closed(self) -> None:
        waiting = self._closed.popleft()
        self._closed_nbytes -= waiting.nbytes
        self._finish(waiting)

    def _settle(self, waiting: Waiting, entry: Entry) -> bool:
        """Decide, if nothing that may come changes the decision."""
        lack = waiting.lack()
        if not lack and waiting.may_be_centred and not waiting.features:
            return False
        self._decide(waiting, entry, lack)
        return True

    def _finish(self, waiting: Waiting) -> None:
        """Decide with what is known."""
        entry = waiting.entry()
        if entry is not None:
            self._decide(waiting, entry, waiting.lack())

    def _decide(self, waiting: Waiting, entry: Entry, lack: str) -> None:
        waiting.entry = _gone
        rest = len(entry.waiting) > 1
        entry.waiting = tuple([w for w in entry.waiting if w is not waiting]) if rest else ()
        self.decided[entry.place] = not lack and self.decided.get(entry.place, True)
        if lack and entry.code is not None:
            entry.failed(waiting, lack)
        elif not entry.waiting and entry.code is not None:
            entry.original = None


def _gone() -> None:
    """In place of a reference to what is decided."""
