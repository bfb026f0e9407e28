# SPDX-License-Identifier: MIT
"""Tensors whose codes a norm may yet forbid, or another operand of their product."""

from __future__ import annotations

import weakref
from typing import Any

from ..codecs.kept import window
from ..codecs.kept.window import Waiting
from .kinds import Kind
from .saved import Kept


class Operand(Waiting):
    """A tensor with the numbers of its guard.

    The operands of a product of activations are decided together: the codes of one are multiplied
    by the means of the other.
    """

    may_be_centred = True

    def __init__(
        self, kept: Kept, kind: Kind, numbers: Any, event: Any, operands: list[Operand] | None
    ) -> None:
        self.entry, self.kind, self.centred = weakref.ref(kept), kind, kept.centred
        self.guard, self.nbytes, self.numbers, self.event = kind.guard, kind.nbytes, numbers, event
        self.operands = operands  # all of its product; None where it is alone
        if operands is not None:
            operands.append(self)

    def may_end(self, newest: Any) -> bool:
        """Whether it is no operand of the product of which more may come."""
        return self.operands is None or newest is None or self.operands is not newest.operands

    def is_there(self) -> bool:
        """Those of all operands."""
        if self.operands is None:
            if self.event is not None and self.event.query():
                self.event = None
            return self.event is None
        return all([Waiting.is_there(each) for each in self.operands])

    def lack(self) -> str:
        """What the codes of any operand are not good enough for."""
        if self.operands is not None:
            for each in self.operands:
                if each.numbers is not None:
                    each.read()
                if each.lacking:
                    return each.lacking
        else:
            if self.numbers is not None:
                self.read()
            if self.lacking:
                return self.lacking
        return "features" if self.centred and not self.features else ""


class Window(window.Window):
    """The newest tensors; what comes may be one of these products' operands or norms."""

    def closed(self, operands: list[Operand]) -> None:
        """All operands of a product are there."""
        with self.lock:
            for waiting in operands:
                kept = waiting.entry()
                if kept is not None and waiting.is_there():
                    self._settle(waiting, kept)

    def centre(self, kept: Kept) -> None:
        """A normalisation takes the result of a product of this tensor."""
        with self.lock:
            kept.centred = True
            for waiting in kept.waiting:
                waiting.centred = waiting.centred or not waiting.is_closed
                if waiting.numbers is None:
                    self._settle(waiting, kept)
