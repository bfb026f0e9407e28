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
from operator import call
from threading import get_ident
from typing import NamedTuple, TypeVar

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
