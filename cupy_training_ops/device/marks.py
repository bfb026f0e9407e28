# SPDX-License-Identifier: MIT
"""Marks: flags that are set together with the writes of a call, without a signal in between.

Python runs signal handlers only between its own instructions, never between functions that C code
calls in turn:

    list(map(call, [launch, partial(setattr, state, "is_torn", True)]))

sets the flag exactly if it has launched. So the caller of an interrupted call knows if it wrote.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from operator import call
from threading import get_ident
from typing import NamedTuple, TypeVar

from ..errors import ProviderError
from ..forks import Locked

T = TypeVar("T")
Note = Callable[[], object]  # a function implemented in C, such as a partial of setattr


class Marks(NamedTuple):
    """Functions that a call runs after its first write, and after its last."""

    first: tuple[Note, ...] = ()
    last: tuple[Note, ...] = ()


NO_MARKS = Marks()
waiting: dict[int, Marks] = {}  # of the next operator call of each thread


def _forget_other_threads() -> None:
    """Drop marks of threads that a forked child lacks, as it reuses their identifiers."""
    for thread in waiting.keys() - {get_ident()}:
        del waiting[thread]


os.register_at_fork(after_in_child=_forget_other_threads)


def call_with_marks(marks: Marks, function: Callable[..., T], *args: object) -> T:
    """Return function(*args); the first operator call in it takes these marks, by `own_marks`."""
    thread = get_ident()
    try:
        waiting[thread] = marks
        return function(*args)
    finally:
        if waiting:
            waiting.pop(thread, None)


def own_marks() -> Marks:
    """Return this operator call's marks, which `call_with_marks` passed, and clear them."""
    return waiting.pop(get_ident(), NO_MARKS) if waiting else NO_MARKS


def in_turn(writes: Sequence[Callable[[], object]], marks: Marks = NO_MARKS) -> None:
    """Call writes, which are C functions, and marks in turn, without a signal in between.

    marks.first follow the first write, marks.last the last.
    """
    make_all((*writes[:1], *marks.first, *writes[1:], *marks.last))


def at_once(writes: Sequence[Callable[[], object]]) -> None:
    """Call writes in turn, with the marks of the current operator call."""
    in_turn(writes, own_marks())


def make_all(calls: Sequence[Callable[[], object]]) -> None:
    """Call functions in turn from C code, so that no signal handler runs between them."""
    list(map(call, calls))


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
