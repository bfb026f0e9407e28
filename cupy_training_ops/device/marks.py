# SPDX-License-Identifier: MIT
"""Marks: notes that are made together with the writes of a call, without a signal in between.

Python runs signal handlers only between its own instructions, never between functions that C code
calls in turn, as list(map(...)) does. So the caller of an interrupted call knows whether it wrote.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from operator import call
from threading import get_ident
from typing import NamedTuple, TypeVar

T = TypeVar("T")
Note = Callable[[], object]  # implemented in C, such as a partial of setattr


class Marks(NamedTuple):
    """Notes to be made after the first write of a call, and after the last."""

    first: tuple[Note, ...] = ()
    last: tuple[Note, ...] = ()


NO_MARKS = Marks()
waiting: dict[int, Marks] = {}  # for the next call of an operator, by thread


def _forget_other_threads() -> None:
    """Drop marks of threads that a forked child lacks: it reuses their identifiers."""
    for thread in waiting.keys() - {get_ident()}:
        del waiting[thread]


os.register_at_fork(after_in_child=_forget_other_threads)


def call_with_marks(marks: Marks, function: Callable[..., T], *args: object) -> T:
    """Call a function, whose first call of an operator makes these marks."""
    thread = get_ident()
    try:
        waiting[thread] = marks
        return function(*args)
    finally:
        if waiting:
            waiting.pop(thread, None)


def own_marks() -> Marks:
    """Take the marks of the current call."""
    return waiting.pop(get_ident(), NO_MARKS) if waiting else NO_MARKS


def in_turn(writes: Sequence[Callable[[], object]], marks: Marks = NO_MARKS) -> None:
    """Call C functions and notes in turn, without a signal handler in between."""
    make_all((*writes[:1], *marks.first, *writes[1:], *marks.last))


def at_once(writes: Sequence[Callable[[], object]]) -> None:
    """Make writes in turn, with the marks of the current call."""
    in_turn(writes, own_marks())


def make_all(calls: Sequence[Callable[[], object]]) -> None:
    """Call functions in turn, from C."""
    list(map(call, calls))
