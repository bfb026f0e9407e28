# SPDX-License-Identifier: MIT
"""Worker processes, and signals that end a process.

Workers go through a list: each has one item at a time, and gets the next when it is done.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any

# Signals that end a process.
ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]

# A forked process could not use CUDA, which does not survive a fork.
CONTEXT = multiprocessing.get_context("spawn")

Attempt = Callable[[Any], str | None]  # from an item to an error message, or None
Outcome = tuple[Any, str | None]  # (item, error message or None)
Attempts = Callable[[Attempt, Iterable[Any]], Iterator[Outcome]]


@contextlib.contextmanager
def workers(count: int) -> Iterator[Attempts]:
    """Yield a function that calls attempt(item) for items in `count` processes.

    It yields (item, result) as items are done. count 1: in this process, exceptions are raised.
    More: in workers, which end with the context; an exception, or the end of a process, becomes the
    item's error message.
    """
    if count == 1:
        yield lambda attempt, items: ((item, attempt(item)) for item in items)
        return
    pool = _Pool(count)
    try:
        yield pool.attempts
    finally:
        pool.end()


class _Pool:
    """At most `count` worker processes, started when there is an item for them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._workers: list[_Worker] = []

    def attempts(self, attempt: Attempt, items: Iterable[Any]) -> Iterator[Outcome]:
        """Call attempt(item) for each item in a worker; yield (item, error or None) when done."""
        waiting, idle = deque(items), list(self._workers)
        busy: dict[Any, tuple[_Worker, Any]] = {}  # (worker, its item) by the worker's pipe
        while waiting or busy:
            while waiting and (idle or len(self._workers) < self._count):
                worker, item = idle.pop() if idle else self._start(), waiting.popleft()
                worker.give(attempt, item)
                busy[worker.pipe] = worker, item
            for pipe in wait(busy):
                worker, item = busy.pop(pipe)
                try:
                    yield item, worker.outcome()
                    idle.append(worker)
                except (EOFError, ConnectionError):
                    yield item, self._remove(worker)

    def end(self) -> None:
        """Stop the workers, whatever they are doing."""
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()

    def _start(self) -> _Worker:
        """Start a worker and return it."""
        with _interrupts_later():
            self._workers.append(_Worker())
        return self._workers[-1]

    def _remove(self, worker: _Worker) -> str:
        """Remove a worker that died; return an error message with its exit code."""
        self._workers.remove(worker)
        worker.process.join()
        worker.pipe.close()
        return f"the process that had it ended with exit code {worker.process.exitcode}"


class _Worker:
    """A process, and the pipe to it."""

    def __init__(self) -> None:
        self.pipe, its_end = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=_serve, args=(its_end,), daemon=True)
        self.process.start()
        its_end.close()

    def give(self, attempt: Attempt, item: Any) -> None:
        """Let the process call attempt(item); `outcome` raises if the process is gone."""
        with contextlib.suppress(ConnectionError):
            self.pipe.send((attempt, item))

    def outcome(self) -> str | None:
        """Wait for the item's error message, or None; EOFError or ConnectionError if it died."""
        return self.pipe.recv()  # type: ignore[no-any-return]


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Delay Ctrl-C to the end of the context; processes started in it have Ctrl-C blocked.

    So only this process gets it, and ends them.
    """
    resource_tracker.ensure_running()  # its start would unblock Ctrl-C inside
    pending: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pending.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, before)
        if pending:
            signal.raise_signal(signal.SIGINT)


def _serve(pipe: Connection) -> None:
    """In a worker, answer each (attempt, item) of a pipe until its other end is closed."""
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(_try(*pipe.recv()))


def _try(attempt: Attempt, item: Any) -> str | None:
    """Return attempt(item), or the traceback of its exception."""
    try:
        return attempt(item)
    except Exception:  # a worker reports whatever it is
        return traceback.format_exc()


@contextlib.contextmanager
def cleanup(clean: Callable[[], None], also: Sequence[signal.Signals] = ()) -> Iterator[None]:
    """Call clean() at the end of the context, also when SIGTERM, SIGHUP or `also` ends the process.

    Ctrl-C is an exception, and may come where a context has just begun or ended: hence `clean` and
    not only what the contexts inside do. A signal that the process ignores stays ignored.
    """

    def end(number: int, _: FrameType | None) -> None:
        clean()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    handled = [number for number in (*ENDING, *also) if signal.getsignal(number) == signal.SIG_DFL]
    for number in handled:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)
        clean()
