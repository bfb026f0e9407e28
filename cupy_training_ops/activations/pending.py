# SPDX-License-Identifier: MIT
"""Arrays between forward and backward, and what of them is still to come from the device.

An `Entry` is an array's codes, or the array itself, or both until its error check is read. On the
host the numbers of a check are there at once. On a GPU the host reads them late: it waits for the
device only where too many bytes wait, or where the backward pass asks. A decision does not depend
on when that is: what comes later changes it only while at most LIMIT bytes came after the array.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from ..forks import Locked
from .error_check import ErrorCheck

LIMIT = 256 << 20  # bytes; more where one array is larger
SHARE = 24  # of a step's bytes, which may wait beside its codes: the host stays ahead of the device


class HeldBytes(Locked):
    """Bytes that entries hold now, and the most at any time; counted from any thread."""

    def __init__(self) -> None:
        super().__init__()
        self.held = self.peak = 0

    def add(self, nbytes: int) -> None:
        """Count bytes that an entry takes, or a negative number that it gives back.

        Finalizers of codes call this: to free codes in here would call it again in its middle.
        """
        with self.lock:
            self.held += nbytes
            if self.held > self.peak:
                self.peak = self.held


class Entry:
    """One array: codes, the array itself, or both. Defaults are the class's, which take no time."""

    statistics: HeldBytes
    code: Any = None
    original: Any = None
    pending: tuple[Any, ...] = ()  # each a PendingCheck
    place: Hashable = None  # among the arrays of a step: a decision holds for later steps

    def shorten(self, nbytes: int) -> None:
        """Give back the memory behind codes of so many bytes."""
        excess = self.code.nbytes - nbytes
        if excess:
            self.code = self.copy_codes(nbytes)
            self.statistics.add(-excess)

    def copy_codes(self, nbytes: int) -> object:
        """Copy the first bytes of the codes."""
        raise NotImplementedError

    def reject(self, check: PendingCheck, failure: str) -> None:
        """Hold the array alone: its codes failed a check."""
        raise NotImplementedError


class PendingLengths:
    """Sparse codes in memory for the longest ones, until the device has told their length.

    The host waits for that when the next such codes are made: what was queued since keeps the
    device busy.
    """

    def __init__(self) -> None:
        self._by_stream: dict[object, deque[tuple[Any, ...]]] = {}

    def add(
        self, stream: object, entry: Entry, tell: Callable[[int], None], length: Any, event: Any
    ) -> None:
        """Add codes whose length comes with an event; `tell` is called with it in any case."""
        lengths = self._by_stream.setdefault(stream, deque())
        lengths.append((weakref.ref(entry), tell, length, event))
        if event is None:
            self.trim(stream)

    def trim(self, stream: object) -> None:
        """Wait for the lengths of a stream's codes, and give back the memory behind them."""
        lengths = self._by_stream.get(stream)
        while lengths:
            with contextlib.suppress(IndexError):  # another thread took the last
                reference, tell, length, event = lengths.popleft()
                if event is not None:
                    event.synchronize()
                (nbytes,) = length.tolist()
                tell(nbytes)
                if (entry := reference()) is not None:
                    entry.shorten(nbytes)

    def trim_all(self) -> None:
        """Trim the codes of all streams."""
        for stream in list(self._by_stream):
            self.trim(stream)


class PendingCheck:
    """An entry with the numbers of its error check, which may be still to come.

    `numbers.tolist()` reads them once `event.synchronize()` has returned; `event.query()` tells if
    it would at once. Where they are there the event is None.
    """

    # Known once the numbers were read, and are None: why the codes fail, and whether they are good
    # enough where features are centred.
    reason, features = "", False
    may_be_centred = False  # a later norm may ask for more
    is_closed = False  # behind the limit: nothing that comes changes the decision

    def __init__(
        self, entry: Entry, check: ErrorCheck, nbytes: int, numbers: Any, event: Any
    ) -> None:
        self.entry: Callable[[], Any] = weakref.ref(entry)
        self.check, self.nbytes, self.numbers, self.event = check, nbytes, numbers, event

    def may_end(self, _newest: PendingCheck | None) -> bool:
        """Return True if the check can be decided while the newest one is added."""
        return True

    def is_ready(self) -> bool:
        """Return True if the numbers can be read without a wait."""
        if self.event is not None and self.event.query():
            self.event = None
        return self.event is None

    def read_numbers(self) -> None:
        """Read the numbers; waits for the device."""
        if self.event is not None:
            self.event.synchronize()
        self.reason, self.features = self.check.failure(self.numbers.tolist())
        self.numbers = self.event = None

    def failure(self) -> str:
        """Return why the codes fail; empty where they do not."""
        if self.numbers is not None:
            self.read_numbers()
        return self.reason


class Step:
    """Bytes of the arrays that were added in one step, and of their codes."""

    __slots__ = ("code_nbytes", "nbytes")

    def __init__(self) -> None:
        self.nbytes = self.code_nbytes = 0

    def room_beside(self, step: Step) -> int:
        """Bytes that may wait in a later step, whose codes all come; early layers need memory."""
        return self.nbytes // SHARE + max(self.code_nbytes - step.code_nbytes, 0) // 2


class PendingChecks(Locked):
    """Checks of the newest arrays, a bounded number of bytes; and behind them closed ones, whose
    decision nothing changes any more, until the device has told it."""

    def __init__(self, limit: int = LIMIT, last: Step | None = None) -> None:
        """last: the step before the first, which tells how many codes are to come."""
        super().__init__()
        self._limit = limit
        self._open: deque[PendingCheck] = deque()
        self._unread: deque[PendingCheck] = deque()  # of the open ones
        self._closed: deque[PendingCheck] = deque()
        self._open_nbytes = self._closed_nbytes = 0
        self._step, self.last = Step(), last or Step()
        self.peak = 0  # bytes that waited
        self.decisions: dict[Hashable, bool] = {}  # by place in a step: were codes good enough?

    def add(self, check: PendingCheck, entry: Entry, code_nbytes: int) -> None:
        """Add an entry that has codes and its original."""
        with self.lock:
            entry.pending = (*entry.pending, check) if entry.pending else (check,)
            if check.event is None and check.may_end(check) and self._settle(check, entry):
                return
            nbytes = check.nbytes
            self._open.append(check)
            self._unread.append(check)
            self._open_nbytes += nbytes
            self._step.nbytes += nbytes
            self._step.code_nbytes += code_nbytes
            if nbytes > self._limit:
                self._limit = nbytes
            self._read_ready(check)
            if self._closed or self._open_nbytes > self._limit:
                self._shrink(check)
            if self._open_nbytes + self._closed_nbytes > self.peak:
                self.peak = self._open_nbytes + self._closed_nbytes

    def end_step(self) -> None:
        """Take the step as the measure for the next one."""
        with self.lock:
            self._step, self.last = Step(), self._step

    def successor(self) -> PendingChecks:
        """Make new checks in place of these, which an exception may have left halfway."""
        other = PendingChecks(self._limit, self.last)
        other.peak, other.decisions = self.peak, self.decisions
        return other

    def finish(self, entry: Entry) -> None:
        """Decide about an entry, as the backward pass asks for it; waits for the device."""
        with self.lock:
            for check in entry.pending:
                self._decide(check, entry, check.failure())

    def finish_all(self) -> None:
        """Decide about all entries; waits for the device."""
        with self.lock:
            while self._open:
                self._close(self._open.popleft())
            while self._closed:
                self._finish_closed()
            self._unread.clear()

    def read_ready(self) -> None:
        """Decide about entries whose numbers can be read without a wait."""
        with self.lock:
            self._read_ready(None)

    def _read_ready(self, newest: PendingCheck | None) -> None:
        """Read the numbers that are there, oldest first, and decide where nothing changes it later.

        newest: the check that is being added; operands of its product are not decided yet.
        """
        unread, closed = self._unread, self._closed
        while unread and (check := unread[0]).may_end(newest):
            entry = check.entry()
            if entry is not None and not check.is_ready():
                break
            unread.popleft()
            if entry is not None:
                self._settle(check, entry)
        while closed and (closed[0].entry() is None or closed[0].is_ready()):
            self._finish_closed()

    def _shrink(self, newest: PendingCheck) -> None:
        """Close the oldest checks until the open ones have `_limit` bytes; then decide about closed
        ones, which waits for the device, until all originals have the bytes that may wait."""
        while self._open_nbytes > self._limit and self._open[0].may_end(newest):
            self._close(self._open.popleft())
        room = max(self._limit, self.last.room_beside(self._step))
        while self._closed and self._open_nbytes + self._closed_nbytes > room:
            self._finish_closed()

    def _close(self, check: PendingCheck) -> None:
        """Decide at once where that takes no wait; else by the same numbers later."""
        self._open_nbytes -= check.nbytes
        if check.entry() is None or check.is_ready():
            self._finish(check)
            return
        check.is_closed = True
        self._closed.append(check)
        self._closed_nbytes += check.nbytes

    def _finish_closed(self) -> None:
        check = self._closed.popleft()
        self._closed_nbytes -= check.nbytes
        self._finish(check)

    def _finish(self, check: PendingCheck) -> None:
        """Decide about an entry that is still there; waits for the numbers of its check."""
        entry = check.entry()
        if entry is not None:
            self._decide(check, entry, check.failure())

    def _settle(self, check: PendingCheck, entry: Entry) -> bool:
        """Decide, and return True, unless codes are good enough now and would not be if a norm that
        comes centred their features."""
        failure = check.failure()
        if not failure and check.may_be_centred and not check.features:
            return False
        self._decide(check, entry, failure)
        return True

    def _decide(self, check: PendingCheck, entry: Entry, failure: str) -> None:
        """Codes that fail give way to the original; it goes with the last check that passes."""
        check.entry = _no_entry
        has_others = len(entry.pending) > 1
        entry.pending = tuple([c for c in entry.pending if c is not check]) if has_others else ()
        self.decisions[entry.place] = not failure and self.decisions.get(entry.place, True)
        if failure and entry.code is not None:
            entry.reject(check, failure)
        elif not entry.pending and entry.code is not None:
            entry.original = None


def _no_entry() -> None:
    """Stand in for the reference to an entry that was decided."""
