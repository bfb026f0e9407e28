# SPDX-License-Identifier: MIT
"""Launches that are noted as they are made, to be made again over the same memory.

    with recorded() as recording:
        relu_grad(dy, x, out=dx)
    make_again(recording.calls)     the same launches, without a check or a look-up

Who makes them again keeps the memory, and sees to it that nothing else uses it in between.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import call
from threading import get_ident

from .marks import NO_MARKS, Marks

Queue = Callable[[], object]  # a C function: queues work, and returns what is false


@dataclass
class Recording:
    """Launches of a thread, in order; is_whole: False if it also queued what cannot be noted."""

    calls: list[Queue] = field(default_factory=list)  # each makes its launch again
    memory: list[object] = field(default_factory=list)  # blocks of arguments that the calls read
    is_whole: bool = True


active: dict[int, Recording] = {}  # by thread
os.register_at_fork(after_in_child=active.clear)


@contextlib.contextmanager
def recorded() -> Iterator[Recording]:
    """Note the launches that this thread queues inside, in the Recording that is yielded."""
    recording, thread = Recording(), get_ident()
    before = active.get(thread)
    active[thread] = recording
    try:
        yield recording
    finally:
        if before is None:
            del active[thread]
        else:
            active[thread] = before


def current() -> Recording | None:
    """Return this thread's recording; None if it is not inside `recorded`."""
    return active.get(get_ident()) if active else None


def leave() -> None:
    """Set `is_whole` of this thread's recording to False: what is done now cannot be noted."""
    recording = current()
    if recording is not None:
        recording.is_whole = False


def make_again(calls: Sequence[Queue], marks: Marks = NO_MARKS) -> None:
    """Make calls and marks in turn, without a signal's handler in between.

    Marks are flags that are set after the first call and the last. RuntimeError if a call returns
    anything true, such as an error code: later ones are not made.
    """
    if marks is not NO_MARKS:
        calls = (*calls[:1], *marks.first, *calls[1:], *marks.last)
    if any(map(call, calls)):
        raise RuntimeError("a launch failed that was made before")
