# SPDX-License-Identifier: MIT
"""Ranks of a group for tests: threads of this process, or processes; every wait has an end."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import cupy_training_ops as cto
from cupy_training_ops.process_group.embedded import LAUNCHER, SOCKETS

ROOT = Path(__file__).resolve().parent.parent
LARGE = 2**20  # elements: more than what a socket holds


def in_threads(
    n: int, function: Callable[[Any], Any], *, timeout: float = 10.0, **keywords: Any
) -> list[Any]:
    """What the function of its group returned, or raised, in each of n threads."""

    def rank(group: cto.ProcessGroup) -> Any:
        with group:
            return function(group)

    groups = cto.ProcessGroup.in_threads(n, timeout, **keywords)
    return gathered([lambda group=group: rank(group) for group in groups], 4 * timeout)


def gathered(actions: Sequence[Callable[[], Any]], timeout: float) -> list[Any]:
    """What each action returned or raised, in a thread of its own; a test fails that hangs."""
    result: list[Any] = [None] * len(actions)

    def act(place: int) -> None:
        try:
            result[place] = actions[place]()
        except Exception as error:
            result[place] = error

    threads = [threading.Thread(target=act, args=(i,), daemon=True) for i in range(len(actions))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), f"a rank hangs: {result}"
    return result


def results(outcomes: Sequence[Any]) -> Sequence[Any]:
    """What the ranks returned; the first error, if there is one."""
    for item in outcomes:
        if isinstance(item, Exception):
            raise item
    return outcomes


def reduced(group: cto.ProcessGroup, x: float, n: int = 3) -> float:
    """The sum of a number of each rank, of which n are sent."""
    return float(cto.nccl_all_reduce([np.full(n, x)], group=group)[0][-1])


@contextlib.contextmanager
def signals_all_the_time(hear: Callable[[int], object] = lambda _: None) -> Iterator[None]:
    """Inside, the main thread has one each 50 ms, whose handler returns."""
    before = signal.signal(signal.SIGALRM, lambda number, _: hear(number))
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def connected(n: int) -> list[dict[int, socket.socket]]:
    """For each rank a socket for each other one."""
    ends: list[dict[int, socket.socket]] = [{} for _ in range(n)]
    for a, b in itertools.combinations(range(n), 2):
        ends[a][b], ends[b][a] = socket.socketpair()
    return ends


class Processes:
    """Processes that run a script with arguments, connected as `launch` does it."""

    def __init__(self, n: int, script: Path, *arguments: str, timeout: float = 10.0) -> None:
        shared = {"WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n), LAUNCHER: str(os.getpid())}
        shared |= {"CTO_TIMEOUT": str(timeout)}
        self._limit = 4 * timeout + 30  # importing takes seconds on a busy machine
        self.started = []
        ends = connected(n)
        for rank, sockets in enumerate(ends):
            fds = [sock.fileno() for _, sock in sorted(sockets.items())]
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            own[SOCKETS] = ",".join([*map(str, fds[:rank]), "", *map(str, fds[rank:])])
            self.started.append(
                subprocess.Popen(
                    [sys.executable, str(script), *arguments],
                    env={**os.environ, **shared, **own},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    pass_fds=fds,
                )
            )
        for sock in (sock for sockets in ends for sock in sockets.values()):
            sock.close()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.started:
            process.kill()
            process.wait()
            process.stdout.close()

    def ended(self) -> list[tuple[int, str]]:
        """Status and output of each, once all have ended."""
        deadline = time.monotonic() + self._limit
        results = []
        for process in self.started:
            text, _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            results.append((process.returncode, text))
        return results
