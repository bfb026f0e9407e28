# SPDX-License-Identifier: MIT
"""Originals that wait until it is decided whether their codes are good enough.

On the host the numbers of a guard are there at once, and an original waits only where its codes
would not do for a normalisation that centres the product's result. On a GPU the host reads them
late: it does not wait for the device but where the window is full, or where the backward pass asks.
What is decided does not depend on when that is: a tensor stays in the window until so many bytes
came after it.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..forks import Locked
from .account import Account
from .consumers import NORMALISED, PRODUCT
from .guards import Verdict, verdict
from .kept import Kept
from .kinds import Kind

LIMIT = 256 << 20  # bytes; more where one tensor is larger


class Waiting:
    """A tensor with the numbers of its guard, which may be still to come.

    The operands of a product of activations are decided together: the codes of one are multiplied
    by the means of the other.
    """

    __slots__ = ("event", "found", "kept", "kind", "numbers", "operands")

    def __init__(
        self, kept: Kept, kind: Kind, numbers: Tensor, event: Any, operands: list[Waiting] | None
    ) -> None:
        self.kept: Callable[[], Kept | None] = weakref.ref(kept)
        self.kind, self.numbers, self.event = kind, numbers, event
        self.found: Verdict | None = None
        self.operands = [] if operands is None else operands
        self.operands.append(self)

    def is_there(self) -> bool:
        """Whether the numbers can be read without a wait."""
        unread = (each for each in self.operands if each.found is None)
        return all(each.event is None or each.event.query() for each in unread)

    def read(self) -> Verdict:
        """The verdict; waits for the device."""
        if self.found is None:
            if self.event is not None:
                self.event.synchronize()
            coding = self.kind.coding
            self.found = verdict(self.numbers.tolist(), coding.guard, coding.grouping is not None)
        return self.found

    def lack(self, kept: Kept) -> str:
        """What the codes are not good enough for; empty where they are."""
        lacking = (each.lacks_itself() for each in self.operands)
        if found := next(filter(None, lacking), ""):
            return found
        return "features" if kept.centred and not self.read().features else ""

    def lacks_itself(self) -> str:
        """The same, of what its own consumer takes."""
        found, need = self.read(), self.kind.use.need
        if not found.codes:
            return "range" if self.kind.coding.guard == "range" else "tiles"
        if need == NORMALISED and not found.groups:
            return "groups"
        return "features" if need == PRODUCT and not found.features else ""


class Window(Locked):
    """The newest tensors that were encoded, a bounded number of bytes."""

    def __init__(self, account: Account, limit: int = LIMIT) -> None:
        super().__init__()
        self._account, self._limit = account, limit
        self._waiting: deque[Waiting] = deque()
        self._nbytes = 0
        self.decided: dict[Any, bool] = {}  # by place in a step: whether codes were good enough

    def add(
        self,
        kept: Kept,
        kind: Kind,
        numbers: Tensor,
        event: Any = None,
        operands: list[Waiting] | None = None,
    ) -> None:
        """A tensor with codes and original; `operands`: of its product, of which more may come."""
        waiting = Waiting(kept, kind, numbers, event, operands)
        with self.lock:
            kept.waiting += 1
            if event is None and operands is None and self._is_settled(waiting, kept):
                self._decide(waiting, kept)
                return
            self._waiting.append(waiting)
            self._nbytes += kind.nbytes
            self._limit = max(self._limit, kind.nbytes)
            self._look(operands)
            while self._nbytes > self._limit and self._waiting[0].operands is not operands:
                self._pop()
            self._account.waiting(self._nbytes)

    def closed(self, operands: list[Waiting]) -> None:
        """All operands of a product are there."""
        with self.lock:
            for waiting in operands:
                kept = waiting.kept()
                if kept is not None and waiting.is_there() and self._is_settled(waiting, kept):
                    self._decide(waiting, kept)

    def centre(self, kept: Kept) -> None:
        """A normalisation takes the result of a product of this tensor."""
        with self.lock:
            kept.centred = True
            for waiting in self._of(kept):
                if waiting.found is not None and self._is_settled(waiting, kept):
                    self._decide(waiting, kept)

    def finish(self, kept: Kept) -> None:
        """Decide now: the backward pass asks."""
        with self.lock:
            for waiting in self._of(kept):
                self._finish(waiting)

    def finish_all(self) -> None:
        """Decide about all."""
        with self.lock:
            while self._waiting:
                self._pop()

    def _of(self, kept: Kept) -> list[Waiting]:
        return [waiting for waiting in self._waiting if waiting.kept() is kept]

    def _pop(self) -> None:
        waiting = self._waiting.popleft()
        self._nbytes -= waiting.kind.nbytes
        self._finish(waiting)

    def _look(self, open_operands: list[Waiting] | None) -> None:
        """Let go of originals whose codes are known to be good for everything."""
        for waiting in self._waiting:
            if waiting.operands is open_operands:
                continue
            if not waiting.is_there():
                return
            kept = waiting.kept()
            if kept is not None and waiting.found is None and self._is_settled(waiting, kept):
                self._decide(waiting, kept)

    @staticmethod
    def _is_settled(waiting: Waiting, kept: Kept) -> bool:
        """Whether nothing that may come changes the decision."""
        return bool(waiting.lack(kept)) or waiting.read().features

    def _finish(self, waiting: Waiting) -> None:
        """Decide with what is known."""
        kept = waiting.kept()
        if kept is not None:
            self._decide(waiting, kept)

    def _decide(self, waiting: Waiting, kept: Kept) -> None:
        waiting.kept = _gone
        kept.waiting -= 1
        lack = waiting.lack(kept)
        self.decided[kept.place] = self.decided.get(kept.place, True) and not lack
        if lack and kept.code is not None:
            assert kept.original is not None
            self._account.failed(waiting.kind.use.consumer, lack)
            kept.whole(kept.original, "guard", waiting.kind.use.consumer)
        elif not kept.waiting and kept.code is not None:
            kept.original = None


def _gone() -> None:
    """In place of a reference to what is decided."""
