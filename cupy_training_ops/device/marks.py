# SPDX-License-Identifier: MIT
"""Notes that are made at once with what a call writes.

Python runs handlers of signals where its own code goes on: none comes between what C code calls in
turn. So who made a call that was stopped knows whether it has written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from operator import call
from threading import get_ident
from typing import NamedTuple, TypeVar

T = TypeVar("T")
Note = Callable[[], object]  # a call of C code alone, such as a partial of setattr


class Marks(NamedTuple):
    """Notes behind the first that a call writes, and behind the last."""

    first: tuple[Note, ...] = ()
    last: tuple[Note, ...] = ()


NO_MARKS = Marks()
waiting: dict[int, Marks] = {}  # of the next call of an operator, by thread


def _forget_other_threads() -> None:
    """A forked child has one thread, and gives the numbers of the others to new ones."""
    for thread in waiting.keys() - {get_ident()}:
        del waiting[thread]


os.register_at_fork(after_in_child=_forget_other_threads)


def call_with_marks(marks: Marks, function: Callable[..., T], *args: object) -> T:
    """The result of a function, whose first call of an operator has these marks."""
    thread = get_ident()
    try:
        waiting[thread] = marks
        return function(*args)
    finally:
        if waiting:
            waiting.pop(thread, None)


def own_marks() -> Marks:
    """The marks of the call that asks, and of no other."""
    return waiting.pop(get_ident(), NO_MARKS) if waiting else NO_MARKS


def in_turn(writes: Sequence[Callable[[], object]], marks: Marks = NO_MARKS) -> None:
    """Make calls of C code, and their notes, with no handler of a signal between them."""
    make_all((*writes[:1], *marks.first, *writes[1:], *marks.last))


def at_once(writes: Sequence[Callable[[], object]]) -> None:
    """Make writes in turn, with the notes of the call that this is."""
    in_turn(writes, own_marks())


def make_all(calls: Sequence[Callable[[], object]]) -> None:
    """Make calls in turn."""
    list(map(call, calls))
