# SPDX-License-Identifier: MIT
"""Whole: a lock and a flag for arrays that are written together, such as weights and moments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..device.marks import Marks, Note, call_with_marks, make_all
from ..errors import ProviderError
from ..forks import Locked


class Whole(Locked):
    """Lock of arrays that form one state; `is_torn` is True if their write was interrupted."""

    def __init__(self, name: str, *, is_torn: bool = False) -> None:
        """name: the class of the arrays' owner, such as "AdamW", for the error."""
        super().__init__()
        self._name = name
        self.is_torn = is_torn  # from the first write to the last one
        # C functions: no signal handler runs between them and a launch.
        begin, self._end = (partial(setattr, self, "is_torn", x) for x in (True, False))
        self._first, self._only = Marks((begin,)), Marks((begin,), (self._end,))

    def __reduce__(self) -> tuple[object, ...]:
        return partial(Whole, self._name, is_torn=self.is_torn), ()

    def recover(self) -> None:
        """In a forked child, leave `is_torn` as it is: a parent's thread may have been writing."""

    def write(self, writes: Sequence[Note]) -> None:
        """Call writes in turn; `is_torn` is True between the first launch and the last.

        The first write is an operator call or `at_once`, which take marks. Within a call on the
        host, and within `Packed` launches, nothing can be interrupted.
        """
        if len(writes) == 1:
            call_with_marks(self._only, writes[0])
        elif writes:
            call_with_marks(self._first, writes[0])
            make_all((*writes[1:], self._end))

    def refuse_torn(self) -> None:
        """Raise ProviderError if some arrays are of one step, others of the next."""
        if self.is_torn:
            raise ProviderError(
                f"{self._name}: expected parameters and moments of one step, got those of a step "
                f"that was interrupted while it wrote: set the parameters and load a state"
            )
