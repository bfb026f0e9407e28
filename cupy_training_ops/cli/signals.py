# SPDX-License-Identifier: MIT
"""Signals that end a process at once, and what it does before."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextlib.contextmanager
def ends_with(clean: Callable[[], None], also: Sequence[signal.Signals] = ()) -> Iterator[None]:
    """Clean up at the end, by whatever it comes: a signal ends the process as it always does.

    Ctrl-C is an exception, and may come where a context has just begun or ended: hence `clean` and
    not only what the contexts inside do. A signal that the process ignores stays ignored.
    """

    def end(number: int, _: FrameType | None) -> None:
        clean()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    taken = [number for number in (*ENDING, *also) if signal.getsignal(number) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
        clean()
