# SPDX-License-Identifier: MIT
"""A child that is forked while another thread holds a lock, or stands in the middle of a call."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

Pause = Callable[[], None]


def forking(test: Callable[..., None]) -> Callable[..., None]:
    """A test that forks: a hang is a failure soon, and threads beside it are meant to be there."""
    quiet = pytest.mark.filterwarnings("ignore:.*fork")(test)  # of Python and JAX
    return pytest.mark.timeout(20)(quiet)


def holding(lock: AbstractContextManager[Any]) -> Callable[[Pause], None]:
    """A thread that pauses while it holds the lock."""

    def holds(pause: Pause) -> None:
        with lock:
            pause()

    return holds


def status_of_child(acts: Callable[[Pause], None], work: Callable[[], int]) -> int:
    """What `work` gives in a child, forked as another thread pauses in what it does."""
    paused, done = threading.Event(), threading.Event()

    def pause() -> None:
        paused.set()
        done.wait(10)

    thread = threading.Thread(target=acts, args=(pause,))
    thread.start()
    assert paused.wait(10)
    child = os.fork()
    if not child:
        _leave_with(work)
    done.set()
    thread.join()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _leave_with(work: Callable[[], int]) -> None:
    """End the child: no exception may leave it, nor may it hang."""
    signal.alarm(5)
    status = 99
    try:
        status = work()
    finally:
        os._exit(status)
