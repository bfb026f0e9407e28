# SPDX-License-Identifier: MIT
"""Stored activations whose error checks, or lengths of codes, are still pending on the device.

An `Entry` has an array's codes, its compressed bytes, or the array itself, or both until its check
is decided. On a GPU the host reads the numbers of checks late: it waits for the device only if too
many bytes are undecided, or if the backward pass needs the array. A norm that is called later
subtracts means, so that codes before it have to be exact beside what is left; it may fail them.
Decisions do not depend on the timing of reads: a later norm changes one only if at most LIMIT bytes
were added after the array.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from ..forks import Locked
from ..log import LOG
from .error_check import ErrorCheck

LIMIT = 256 << 20  # bytes, or one array if that is larger
SHARE = 24  # 1/24 of a step's bytes may be undecided, so that the host stays ahead


class HeldBytes(Locked):
    """Bytes that entries have now, `held`, and their maximum so far, `peak`; thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self.held = self.peak = 0

    def add(self, nbytes: int) -> None:
        """Count bytes that an entry allocates, or frees if negative.

        Finalizers of codes call this, so it must not free codes itself.
        """
        with self.lock:
            self.held += nbytes
            if self.held > self.peak:
                self.peak = self.held


class Entry:
    """One stored array: `code`, `original`, or both while checks are pending."""

    statistics: HeldBytes
    code: Any = None
    original: Any = None
    pending: tuple[Any, ...] = ()  # of PendingCheck
    place: Hashable = None  # identifies it in each step: decisions are reused under capture

    def shorten(self, nbytes: int) -> None:
        """Free the memory after codes of so many bytes."""
        excess = self.code.nbytes - nbytes
        if excess:
            self.code = self.copy_codes(nbytes)
            self.statistics.add(-excess)

    def copy_codes(self, nbytes: int) -> object:
        """Copy the first bytes of the codes."""
        raise NotImplementedError

    def reject(self, check: PendingCheck, failure: str) -> None:
        """Drop the codes, which failed a check, and store only the array.

        failure: the limit that was exceeded, as "tiles" (activations/error_check.py).
        """
        raise NotImplementedError


class PendingLengths:
    """Sparse codes in buffers of maximum size, until their lengths are read from the device.

    The host waits for a length when the next such codes are made; work queued since then keeps the
    device busy.
    """

    def __init__(self) -> None:
        # Of (weak reference to the entry, tell, length, event): arguments of `add`.
        self._by_stream: dict[object, deque[tuple[Any, ...]]] = {}

    def add(
        self, stream: object, entry: Entry, tell: Callable[[int], None], length: Any, event: Any
    ) -> None:
        """Add an entry of codes that work on `stream` makes.

        length: host memory of one integer, bytes, which can be read after the event, or at once if
        that is None. tell: called with the length.
        """
        lengths = self._by_stream.setdefault(stream, deque())
        lengths.append((weakref.ref(entry), tell, length, event))
        if event is None:
            self.trim(stream)

    def trim(self, stream: object) -> None:
        """Wait for the lengths of a stream's codes, and free the memory after them."""
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
        """Wait for the lengths of all streams' codes, and shorten these."""
        for stream in list(self._by_stream):
            self.trim(stream)


class PendingCheck:
    """An entry and the numbers of its error check.

    entry(): returns it, or None if it is freed. check: what was measured, and its limits. nbytes:
    of the array. numbers: readable by `tolist` after the event, or at once if that is None.
    """

    # Set when the numbers are read, which then become None: why the codes fail, and whether they
    # are good enough for a product before a norm.
    reason, features = "", False
    may_be_centred = False  # a later norm may ask for more
    is_closed = False  # beyond the limit: later norms do not change the decision

    def __init__(
        self, entry: Entry, check: ErrorCheck, nbytes: int, numbers: Any, event: Any
    ) -> None:
        self.entry: Callable[[], Any] = weakref.ref(entry)
        self.check, self.nbytes, self.numbers, self.event = check, nbytes, numbers, event

    def may_end(self, _newest: PendingCheck | None) -> bool:
        """Return True if the check can be decided while the newest one is added: here always."""
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
        """Return why the codes fail, or ""."""
        if self.numbers is not None:
            self.read_numbers()
        return self.reason


class Step:
    """Bytes of arrays and codes that were added in one step."""

    __slots__ = ("code_nbytes", "nbytes")

    def __init__(self) -> None:
        self.nbytes = self.code_nbytes = 0

    def room_beside(self, step: Step) -> int:
        """Return the bytes of originals that may be undecided in the next step, `step`: a share of
        this one's, and half of the bytes of codes that `step` is still to add, if it is alike."""
        return self.nbytes // SHARE + max(self.code_nbytes - step.code_nbytes, 0) // 2


class PendingChecks(Locked):
    """Undecided checks: open ones, of the newest arrays up to a limit of bytes, which a later norm
    may change; and older, closed ones, which wait only for their numbers."""

    def __init__(self, limit: int = LIMIT, last: Step | None = None) -> None:
        """limit: bytes of arrays whose checks may be open; last: the previous step, from which the
        bytes of this one's codes are estimated."""
        super().__init__()
        self._limit = limit
        self._open: deque[PendingCheck] = deque()  # a later norm may still change these
        self._unread: deque[PendingCheck] = deque()  # of the open ones: numbers are not read
        self._closed: deque[PendingCheck] = deque()  # past the limit: only numbers are awaited
        self._open_nbytes = self._closed_nbytes = 0  # of their arrays
        self._step, self.last = Step(), last or Step()
        self.peak = 0  # bytes that waited
        self.decisions: dict[Hashable, bool] = {}  # by place: codes were good enough

    def add(self, check: PendingCheck, entry: Entry, code_nbytes: int) -> None:
        """Add a check of an entry that has both codes and its original.

        code_nbytes: bytes of the codes.
        """
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
        """End a step; its bytes are the estimate of how many the next one has."""
        with self.lock:
            self._step, self.last = Step(), self._step

    def successor(self) -> PendingChecks:
        """Make new checks after an exception, which may have left these inconsistent."""
        other = PendingChecks(self._limit, self.last)
        other.peak, other.decisions = self.peak, self.decisions
        return other

    def finish(self, entry: Entry) -> None:
        """Decide about an entry that the backward pass needs; waits for the device."""
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
        """Read numbers that are ready, oldest first, and decide what no later norm can change.

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
        """Close the oldest checks until open ones have at most `_limit` bytes; then decide closed
        ones, waiting for the device, until all undecided originals fit into the room."""
        while self._open_nbytes > self._limit and self._open[0].may_end(newest):
            self._close(self._open.popleft())
        room = max(self._limit, self.last.room_beside(self._step))
        while self._closed and self._open_nbytes + self._closed_nbytes > room:
            self._finish_closed()

    def _close(self, check: PendingCheck) -> None:
        """Decide a check if it is ready, else close it: later norms do not change it."""
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
        """Decide about an entry if it is alive; waits for the numbers of its check."""
        entry = check.entry()
        if entry is not None:
            self._decide(check, entry, check.failure())

    def _settle(self, check: PendingCheck, entry: Entry) -> bool:
        """Decide about an entry by a check whose numbers can be read, and return True; return False
        if codes pass now but would fail before a norm, which may follow."""
        failure = check.failure()
        if not failure and check.may_be_centred and not check.features:
            return False
        self._decide(check, entry, failure)
        return True

    def _decide(self, check: PendingCheck, entry: Entry, failure: str) -> None:
        """Apply the result of a check to its entry: drop codes that fail, or the original after the
        last of the entry's checks has passed.

        failure: why the codes fail, "" if they pass.
        """
        check.entry = _no_entry
        has_others = len(entry.pending) > 1
        entry.pending = tuple([c for c in entry.pending if c is not check]) if has_others else ()
        passed = self.decisions.get(entry.place, True)
        if failure and passed:
            LOG.info("fallback: stored without codes: failed check: %s: %s", failure, entry.place)
        self.decisions[entry.place] = not failure and passed
        if failure and entry.code is not None:
            entry.reject(check, failure)
        elif not entry.pending and entry.code is not None:
            entry.original = None


def _no_entry() -> None:
    """Replace the reference to a decided entry."""
