# SPDX-License-Identifier: MIT
"""Originals that wait until it is decided whether their codes are good enough.

On the host the numbers of a guard are there at once, and an original waits only where its codes
would not do for a normalisation that centres the product's result. On a GPU the host reads them
late: it waits for the device only where too many bytes wait, or where the backward pass asks. What
is decided does not depend on when that is: what may come changes a decision only while no more than
LIMIT bytes came after the tensor.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from ..forks import Locked
from .account import Account
from .consumers import NORMALISED, PRODUCT
from .guards import Verdict, verdict
from .kept import Kept
from .kinds import Kind

LIMIT = 256 << 20  # bytes; more where one tensor is larger
SHARE = 24  # of a step's bytes, which may wait beside its codes: the host stays ahead of the device


class Waiting:
    """A tensor with the numbers of its guard, which may be still to come.

    The operands of a product of activations are decided together: the codes of one are multiplied
    by the means of the other.
    """

    __slots__ = ("centred", "event", "features", "kept", "kind", "lacking", "numbers", "operands")

    def __init__(
        self, kept: Kept, kind: Kind, numbers: Any, event: Any, operands: list[Waiting] | None
    ) -> None:
        self.kept: Callable[[], Kept | None] = weakref.ref(kept)
        self.kind, self.numbers, self.event = kind, numbers, event
        self.lacking, self.features = "", False  # once numbers were read, and are None
        self.centred: bool | None = None  # whether features are, once that cannot change
        self.operands = operands  # all of its product; None where it is alone
        if operands is not None:
            operands.append(self)

    def may_end(self, open_operands: list[Waiting] | None) -> bool:
        """Whether it is no operand of the product of which more may come."""
        return self.operands is None or self.operands is not open_operands

    def is_over(self) -> bool:
        """Whether nobody waits, or the numbers can be read without a wait."""
        return self.kept() is None or self.is_there()

    def is_there(self) -> bool:
        """The latter."""
        for each in (self,) if self.operands is None else self.operands:
            if each.event is not None:
                if not each.event.query():
                    return False
                each.event = None
        return True

    def read(self) -> None:
        """Let the numbers be known; waits for the device."""
        coding = self.kind.coding
        if self.event is not None:
            self.event.synchronize()
        found = verdict(self.numbers.tolist(), coding.guard, coding.grouping is not None)
        self.lacking, self.features = _lacking(found, self.kind), found.features
        self.numbers = self.event = None

    def lack(self, kept: Kept) -> str:
        """What the codes are not good enough for; empty where they are."""
        for each in (self,) if self.operands is None else self.operands:
            if each.numbers is not None:
                each.read()
            if each.lacking:
                return each.lacking
        centred = kept.centred if self.centred is None else self.centred
        return "features" if centred and not self.features else ""


def _lacking(found: Verdict, kind: Kind) -> str:
    """What codes are not good enough for of what their own consumer takes."""
    need = kind.use.need
    if not found.codes:
        return "range" if kind.coding.guard == "range" else "tiles"
    if need == NORMALISED and not found.groups:
        return "groups"
    return "features" if need == PRODUCT and not found.features else ""


class _Step:
    """Bytes of the tensors that one step gave a window, and of their codes."""

    __slots__ = ("code_nbytes", "nbytes")

    def __init__(self) -> None:
        self.nbytes = self.code_nbytes = 0

    def room_beside(self, step: _Step) -> int:
        """What may wait in a later step, whose codes all come; early layers also need memory."""
        return self.nbytes // SHARE + max(self.code_nbytes - step.code_nbytes, 0) // 2


class Window(Locked):
    """The newest tensors that were encoded, a bounded number of bytes; and behind them closed ones,
    whose decision nothing changes any more, until the device has said what it is."""

    def __init__(self, account: Account, limit: int = LIMIT) -> None:
        super().__init__()
        self._account, self._limit = account, limit
        self._open: deque[Waiting] = deque()
        self._unread: deque[Waiting] = deque()  # of those
        self._closed: deque[Waiting] = deque()
        self._open_nbytes = self._closed_nbytes = 0
        self._step, self._last = _Step(), _Step()
        self.most = 0  # bytes that waited
        self.decided: dict[Any, bool] = {}  # by place in a step: whether codes were good enough

    def add(
        self,
        kept: Kept,
        kind: Kind,
        numbers: Any,
        event: Any = None,
        operands: list[Waiting] | None = None,
    ) -> None:
        """A tensor with codes and original; `operands`: of its product, of which more may come."""
        waiting = Waiting(kept, kind, numbers, event, operands)
        with self.lock:
            kept.waiting = (*kept.waiting, waiting)
            if event is None and operands is None and self._settle(waiting, kept):
                return
            nbytes = kind.nbytes
            self._open.append(waiting)
            self._unread.append(waiting)
            self._open_nbytes += nbytes
            self._step.nbytes += nbytes
            self._step.code_nbytes += kind.coding.code_nbytes
            if nbytes > self._limit:
                self._limit = nbytes
            self._look(operands)
            self._shrink(operands)
            if self._open_nbytes + self._closed_nbytes > self.most:
                self.most = self._open_nbytes + self._closed_nbytes

    def end_step(self) -> None:
        """The next one is taken to be like it: so it is known how many codes are to come."""
        with self.lock:
            self._step, self._last = _Step(), self._step

    def closed(self, operands: list[Waiting]) -> None:
        """All operands of a product are there."""
        with self.lock:
            for waiting in operands:
                kept = waiting.kept()
                if kept is not None and waiting.is_there():
                    self._settle(waiting, kept)

    def centre(self, kept: Kept) -> None:
        """A normalisation takes the result of a product of this tensor."""
        with self.lock:
            kept.centred = True
            for waiting in kept.waiting:
                if waiting.numbers is None:
                    self._settle(waiting, kept)

    def finish(self, kept: Kept) -> None:
        """Decide now: the backward pass asks."""
        with self.lock:
            for waiting in kept.waiting:
                self._decide(waiting, kept, waiting.lack(kept))

    def finish_all(self) -> None:
        """Decide about all."""
        with self.lock:
            for waiting in (*self._closed, *self._open):
                self._finish(waiting)
            for some in (self._open, self._unread, self._closed):
                some.clear()
            self._open_nbytes = self._closed_nbytes = 0

    def _look(self, open_operands: list[Waiting] | None) -> None:
        """Let go of originals whose codes are known to be good for everything."""
        unread, closed = self._unread, self._closed
        while unread and unread[0].may_end(open_operands):
            kept = unread[0].kept()
            if kept is None:
                unread.popleft()
            elif unread[0].is_there():
                self._settle(unread.popleft(), kept)
            else:
                break
        while closed and closed[0].is_over():
            self._finish_closed()

    def _shrink(self, open_operands: list[Waiting] | None) -> None:
        """Close what is behind the limit; wait where too many bytes do."""
        while self._open_nbytes > self._limit and self._open[0].may_end(open_operands):
            self._close(self._open.popleft())
        room = max(self._limit, self._last.room_beside(self._step))
        while self._closed and self._open_nbytes + self._closed_nbytes > room:
            self._finish_closed()

    def _close(self, waiting: Waiting) -> None:
        self._open_nbytes -= waiting.kind.nbytes
        if waiting.is_over():
            self._finish(waiting)
            return
        kept = waiting.kept()
        waiting.centred = kept is not None and kept.centred
        self._closed.append(waiting)
        self._closed_nbytes += waiting.kind.nbytes

    def _finish_closed(self) -> None:
        waiting = self._closed.popleft()
        self._closed_nbytes -= waiting.kind.nbytes
        self._finish(waiting)

    def _settle(self, waiting: Waiting, kept: Kept) -> bool:
        """Decide, if nothing that may come changes the decision."""
        lack = waiting.lack(kept)
        if not lack and not waiting.features:
            return False
        self._decide(waiting, kept, lack)
        return True

    def _finish(self, waiting: Waiting) -> None:
        """Decide with what is known."""
        kept = waiting.kept()
        if kept is not None:
            self._decide(waiting, kept, waiting.lack(kept))

    def _decide(self, waiting: Waiting, kept: Kept, lack: str) -> None:
        waiting.kept = _gone
        rest = len(kept.waiting) > 1
        kept.waiting = tuple([each for each in kept.waiting if each is not waiting]) if rest else ()
        self.decided[kept.place] = not lack and self.decided.get(kept.place, True)
        if lack and kept.code is not None:
            assert kept.original is not None
            self._account.failed(waiting.kind.use.consumer, lack)
            kept.whole(kept.original, "guard", waiting.kind.use.consumer)
        elif not kept.waiting and kept.code is not None:
            kept.original = None


def _gone() -> None:
    """In place of a reference to what is decided."""
