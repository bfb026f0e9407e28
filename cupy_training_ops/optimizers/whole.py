# SPDX-License-Identifier: MIT
"""States that several arrays are together: read and written as a whole, or refused."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..device.marks import Marks, Note, call_with_marks, make_all
from ..errors import ProviderError
from ..forks import Locked


class Whole(Locked):
    """State that one thread at a time reads or writes; it knows of a write that was interrupted."""

    def __init__(self, name: str, *, is_torn: bool = False) -> None:
        super().__init__()
        self._name = name
        self.is_torn = is_torn  # from the first write to the last one
        begin, self._end = (partial(setattr, self, "is_torn", x) for x in (True, False))
        self._first, self._only = Marks((begin,)), Marks((begin,), (self._end,))

    def __reduce__(self) -> tuple[object, ...]:
        return partial(Whole, self._name, is_torn=self.is_torn), ()

    def recover(self) -> None:
        """The parent's thread may have been writing: `is_torn` says so here, too."""

    def write(self, writes: Sequence[Note]) -> None:
        """Make all writes, each of which is a call of an operator, or `at_once`.

        Those of one call on the host, and launches that are packed, leave no moment between the
        first and the last.
        """
        if len(writes) == 1:
            call_with_marks(self._only, writes[0])
        elif writes:
            call_with_marks(self._first, writes[0])
            make_all((*writes[1:], self._end))

    def refuse_torn(self) -> None:
        """Refuse to go on from arrays some of which are of one step, some of the next."""
        if self.is_torn:
            raise ProviderError(
                f"{self._name}: expected parameters and moments of one step, got those of a step "
                f"that was interrupted while it wrote: set the parameters and load a state"
            )
