# SPDX-License-Identifier: MIT
"""What a group has to let go of: its engine, NCCL's communicators, the thread that watches them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..forks import InChild
from .engine import GRACE, Engine, Ranks

ABORT_TIMEOUT = 10.0  # seconds that aborting NCCL may take
MAX_INTERVAL = 1.0  # seconds between looks at what is under way on the GPU, at most
IN_CHILD = "it belongs to the process that forked this one, which has to make its own"
FAILED = 1  # the status of a process that a fault ends

_of_parents: list[object] = []  # what a forked child holds, whose end would be its parent's


class Resources(InChild):
    """They do not know the group, which may be collected.

    A forked child lets go of them at once, without a word to the others: what it did to a
    connection or a communicator would be its parent's doing.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine
        self.communicators: dict[Ranks, Any] = {}  # of nccl.Communicator, which imports the group
        self.busy = threading.Lock()  # while a call is under way
        self._stop, self._is_connected = threading.Event(), threading.Event()
        self._is_connected.set()
        self._watcher: threading.Thread | None = None

    def renew(self) -> None:
        """In a child the group has ended, and nothing is left to close."""
        _of_parents.append((self.engine, list(self.communicators.values())))
        self.communicators.clear()
        self._watcher = None
        self.busy, self.engine.lock = threading.Lock(), threading.Lock()
        self.engine.has_ended, self.engine.fault = True, IN_CHILD
        self.engine.abandon()

    def close(self) -> None:
        """End everything; the others are told by the engine.

        What another thread is at ends first: a farewell in the middle of its message would be taken
        for a part of an array.
        """
        if not self.busy.acquire(blocking=False):
            self.engine.end(f"rank {self.engine.rank} closed its group in the middle of a call")
            self.busy.acquire(timeout=GRACE)  # not for ever: the call may be this thread's own
        self._stop.set()
        found = self.communicators.values()
        if found:
            is_well = not (self.engine.fault or self.engine.last_words)
            _within(ABORT_TIMEOUT, [item.close if is_well else item.abort for item in found])
        self.communicators.clear()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join(ABORT_TIMEOUT)
        if self.engine.fault != IN_CHILD:
            self.engine.close()

    @contextmanager
    def initialising(self) -> Iterator[None]:
        """While NCCL connects, there is nothing yet that could be aborted, but who watches."""
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="cto-nccl", daemon=True)
            self._watcher.start()
        self._is_connected.clear()
        try:
            yield
        finally:
            self._is_connected.set()

    def _watch(self) -> None:
        """Notice faults of others and of the GPU while the host may wait for the GPU."""
        engine = self.engine
        try:
            while not engine.fault and not self._stop.wait(min(MAX_INTERVAL, engine.timeout / 4)):
                if words := self._trouble():
                    engine.end(words)
        except BaseException as error:
            engine.end(f"rank {engine.rank}: the thread that watches ended: {error!r}")
        if engine.fault and not self._stop.is_set():
            self._abort(engine.fault)

    def _trouble(self) -> str:
        """What is wrong with another rank, or with calls that are under way on the GPU."""
        engine = self.engine
        if engine.lock.acquire(blocking=False):  # else a call of the host looks itself
            try:
                if words := engine.news():
                    return words
            finally:
                engine.lock.release()
        for communicator in list(self.communicators.values()):
            if words := communicator.trouble():
                return f"rank {engine.rank}: {words}"
        return ""

    def _abort(self, words: str) -> None:
        """End what is under way on the GPU, so that its stream goes on; NCCL may also hang."""
        aborts = [found.abort for found in self.communicators.values()]
        is_done = _within(ABORT_TIMEOUT, [*aborts, self._is_connected.wait])
        if not is_done:
            rank = self.engine.rank
            sys.stderr.write(f"cupy-training-ops: rank {rank}: {words}; NCCL hangs\n")
            sys.stderr.flush()
            os._exit(FAILED)


def _within(seconds: float, actions: Sequence[Callable[[], object]]) -> bool:
    """Whether actions that may hang came back in time."""
    every = (action() for action in actions)
    thread = threading.Thread(target=tuple, args=(every,), name="cto-nccl", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()
