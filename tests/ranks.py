# SPDX-License-Identifier: MIT
"""Ranks of a group for tests: threads of this process, or processes; every wait has an end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cupy_training_ops as cto

ROOT = Path(__file__).resolve().parent.parent
LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        return sock.getsockname()[1]


def address() -> str:
    """An address that a group may meet at."""
    return f"{LOOPBACK}:{free_port()}"


def in_threads(
    n: int, function: Callable[[Any], Any], *, timeout: float = 10.0, **keywords: Any
) -> list[Any]:
    """What the function of its group returned, or raised, in each of n threads."""
    place = address()

    def rank(number: int) -> Any:
        with cto.ProcessGroup(number, n, place, timeout=timeout, **keywords) as group:
            return function(group)

    return gathered([lambda number=number: rank(number) for number in range(n)], 4 * timeout)


def gathered(actions: Sequence[Callable[[], Any]], timeout: float) -> list[Any]:
    """What each action returned or raised, in a thread of its own; a test fails that hangs."""
    found: list[Any] = [None] * len(actions)

    def act(place: int) -> None:
        try:
            found[place] = actions[place]()
        except Exception as error:
            found[place] = error

    threads = [threading.Thread(target=act, args=(i,), daemon=True) for i in range(len(actions))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), f"a rank hangs: {found}"
    return found


def results(found: Sequence[Any]) -> Sequence[Any]:
    """What the ranks returned; the first error, if there is one."""
    for item in found:
        if isinstance(item, Exception):
            raise item
    return found


class Processes:
    """Processes that run a script with arguments, each with torchrun's variables."""

    def __init__(self, n: int, script: Path, *arguments: str, timeout: float = 10.0) -> None:
        port = str(free_port())
        shared = {"WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n), "MASTER_ADDR": LOOPBACK}
        shared |= {"MASTER_PORT": port, "CTO_TIMEOUT": str(timeout), "PYTHONPATH": str(ROOT)}
        self._limit = 4 * timeout + 30  # importing takes seconds on a busy machine
        self.started = [
            subprocess.Popen(
                [sys.executable, str(script), *arguments],
                env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(n)
        ]

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
        found = []
        for process in self.started:
            text, _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            found.append((process.returncode, text))
        return found
