# SPDX-License-Identifier: MIT
"""A child that is forked while another thread holds a lock."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


def status_of_child(lock: AbstractContextManager[Any], work: Callable[[], int]) -> int:
    """What `work` gives in the child; in the parent the lock is free again."""
    held, done = threading.Event(), threading.Event()

    def holds() -> None:
        with lock:
            held.set()
            done.wait(10)

    thread = threading.Thread(target=holds)
    thread.start()
    held.wait(10)
    child = os.fork()
    if not child:  # no exception may leave it, nor may it hang
        signal.alarm(5)
        os._exit(work())
    done.set()
    thread.join()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
