# SPDX-License-Identifier: MIT
"""`launch`: a script in several processes of this machine, one for each rank."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO

import click

from ..process_group.environment import LOOPBACK
from .errors import Failure, end_as
from .signals import ends_with

REPORTING = 2.0  # seconds that the other ranks have to say what they were told of a failure
ENDING = 5.0  # and to end when they are asked to


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--ranks", type=click.IntRange(min=1), required=True, help="Processes to start.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds that a rank waits for the others.  [default: 300]",
)
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def launch(ranks: int, timeout: float | None, script: str, args: tuple[str, ...]) -> None:
    """Run SCRIPT with ARGS in several processes, one for each rank of a group.

    The script makes the group by ProcessGroup.from_environment(). Its lines come with the rank in
    front. When one process fails, the others are ended, and its exit code is this command's.
    """
    shared = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(_free_port()),
        "CTO_SECRET": secrets.token_hex(16),
        "PYTHONUNBUFFERED": "1",
    }
    if timeout is not None:
        shared["CTO_TIMEOUT"] = str(timeout)
    command = [sys.executable, script, *args]
    started: list[_Rank] = []
    with ends_with(lambda: _end(started)):
        for rank in range(ranks):
            started.append(_Rank(rank, command, shared))
        status = _first_failure(started)
        if status:
            _wait(started, REPORTING)
    for process in started:
        process.finish()
    if status:
        end_as(status)


class _Rank:
    """A process, and threads that hand on its lines."""

    def __init__(self, rank: int, command: Sequence[str], shared: dict[str, str]) -> None:
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        pipe = subprocess.PIPE
        try:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **shared, **own},
                stdin=subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
            )
        except OSError as error:
            raise Failure(f"cannot start {command[0]}: {error.strerror}") from None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        streams = (self.process.stdout, False), (self.process.stderr, True)
        self._threads = [
            threading.Thread(target=_hand_on, args=(f"[{rank}] ", *stream), daemon=True)
            for stream in streams
        ]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Hand on what is left; a child of its own may hold the pipes for ever."""
        for thread in self._threads:
            thread.join(ENDING)


def _hand_on(prefix: str, stream: IO[bytes], is_error: bool) -> None:
    with stream, contextlib.suppress(OSError, ValueError):
        for line in stream:
            text = line.decode("utf-8", "backslashreplace").rstrip("\r\n")
            click.echo(prefix + text, err=is_error)


def _first_failure(started: Sequence[_Rank]) -> int:
    """The status of the process that fails first; 0 when all have ended well."""
    while True:
        statuses = [rank.process.poll() for rank in started]
        failed = [status for status in statuses if status]
        if failed:
            return failed[0] if failed[0] > 0 else 128 - failed[0]  # as a shell has it
        if None not in statuses:
            return 0
        time.sleep(0.02)


def _end(started: Sequence[_Rank]) -> None:
    """End whoever still runs, at last whether it wants to or not."""
    for rank in started:
        if rank.process.poll() is None:
            rank.process.send_signal(signal.SIGTERM)
    _wait(started, ENDING)
    for rank in started:
        if rank.process.poll() is None:
            rank.process.kill()
            rank.process.wait()


def _wait(started: Sequence[_Rank], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for rank in started:
        with contextlib.suppress(subprocess.TimeoutExpired):
            rank.process.wait(max(0.0, deadline - time.monotonic()))


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        return int(sock.getsockname()[1])
