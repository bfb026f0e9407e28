# SPDX-License-Identifier: MIT
"""`launch`: a script in several processes of this machine, one for each rank."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import wait
from typing import IO, Any

import click

from ..errors import GroupError
from ..process_group.embedded import LAUNCHER, SOCKETS, Sockets, socket_pairs
from .errors import Failure, end_as
from .processes import cleanup

LOOPBACK = "127.0.0.1"
REPORTING = 2.0  # seconds for other ranks to print their errors after one has failed
ENDING = 5.0  # seconds from SIGTERM to SIGKILL
REST = 0.5  # seconds for the last lines in a pipe to arrive
PAUSE = 0.02  # seconds between looks at the processes
PR_SET_PDEATHSIG = 1
PRCTL: Any = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
Ends = list[int | None]  # exit status by rank; None while it runs
# Signals, beside Ctrl-C and processes.ENDING, that end the launcher and its ranks.
QUITTING = [getattr(signal, n) for n in ("SIGQUIT", "SIGUSR1", "SIGUSR2") if hasattr(signal, n)]


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
    """Run SCRIPT with ARGS in several processes of this machine, one for each rank of a group.

    The script makes the group by ProcessGroup(). Its lines come with the rank in front. When one
    process fails, the others are ended, and its exit code is this command's. What a rank started
    itself ends with it.
    """
    shared = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": LOOPBACK,  # for scripts that also use torch.distributed
        "MASTER_PORT": str(_free_port()),
        LAUNCHER: str(os.getpid()),
        "PYTHONUNBUFFERED": "1",
    }
    if timeout is not None:
        shared["CTO_TIMEOUT"] = str(timeout)
    started: list[_Rank] = []
    with cleanup(lambda: _end(started), QUITTING):
        try:
            for rank, sockets in enumerate(socket_pairs(ranks)):
                started.append(_Rank(rank, [sys.executable, script, *args], shared, sockets))
                for sock in sockets.values():  # the process has them
                    sock.close()
        except GroupError as error:
            raise Failure(str(error)) from None
        for process in started:  # not before: a thread of this process does not survive a fork
            process.hand_on()
        try:
            statuses = _wait(started, math.inf, any)
        except KeyboardInterrupt:  # as a terminal would tell them
            _signal(started, signal.SIGINT)
            raise
        finally:
            _wait(started, REPORTING, lambda _: False)
    if failed := next(filter(None, statuses), 0):
        end_as(failed)


class _Rank:
    """A rank's process, in a process group of its own, and two threads that print its lines.

    The process is reaped only by `end`: until then no other process can get its id, which is also
    that of the process group to signal.
    """

    def __init__(
        self, rank: int, command: Sequence[str], shared: dict[str, str], sockets: Sockets
    ) -> None:
        """Start the command, which inherits the sockets to other ranks.

        shared: environment variables that are the same for all ranks.
        """
        descriptors = [str(sock.fileno()) for _, sock in sorted(sockets.items())]
        descriptors.insert(rank, "")  # so that they are by rank
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), SOCKETS: ",".join(descriptors)}
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **shared, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[sock.fileno() for sock in sockets.values()],
            process_group=0,
            preexec_fn=PRCTL and partial(_die_with, os.getpid()),
        )
        self._prefix, self._over = f"[{rank}] ", threading.Event()
        self._threads: list[threading.Thread] = []

    def hand_on(self) -> None:
        """Start the threads that print lines of its stdout and stderr, with the rank in front."""
        for stream, is_error in ((self.process.stdout, False), (self.process.stderr, True)):
            arguments = self._prefix, stream, is_error, self._over
            self._threads.append(threading.Thread(target=_hand_on, args=arguments, daemon=True))
            self._threads[-1].start()

    @property
    def status(self) -> int | None:
        """Its exit code, for a signal 128 plus its number; None while it runs."""
        end = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return end and end.si_status + (0 if end.si_code == os.CLD_EXITED else 128)

    def end(self) -> None:
        """Print what is left in the pipes, kill whatever still runs in its group, and reap it."""
        self._over.set()
        self._join()
        _signal([self], signal.SIGKILL)
        self.process.wait()
        self._join()

    def _join(self) -> None:
        """Wait up to REST seconds for each thread."""
        for thread in self._threads:
            thread.join(REST)


def _die_with(launcher: int) -> None:
    """In the new process, ask Linux to kill it when its launcher ends; launcher: process id."""
    PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        os._exit(1)


def _hand_on(prefix: str, stream: IO[bytes], is_error: bool, over: threading.Event) -> None:
    """Print the lines of a pipe, each behind `prefix`, to stdout, or stderr with is_error.

    Until the pipe ends, or once `over` is set until nothing more comes.
    """
    with stream:
        for line in _lines(stream, over):
            text = line.decode("utf-8", "backslashreplace").rstrip("\r\n")
            with contextlib.suppress(OSError, ValueError):
                click.echo(prefix + text, err=is_error)


def _lines(stream: IO[bytes], over: threading.Event) -> Iterator[bytes]:
    """Yield the lines of a pipe until it ends, or once `over` is set until nothing more comes."""
    left = bytearray()  # of a line without an end
    while (is_ready := wait([stream.fileno()], REST / 5)) or not over.is_set():
        data = os.read(stream.fileno(), 2**16) if is_ready else None
        if data == b"":
            break
        *lines, rest = (data or b"").split(b"\n")
        for line in lines:
            yield bytes(left + line)
            left = bytearray()
        left += rest
    if left:
        yield bytes(left)


def _wait(started: Sequence[_Rank], seconds: float, is_over: Callable[[Ends], bool]) -> Ends:
    """Wait until all ranks that were started have ended, is_over(statuses) is true, or `seconds`
    are over; return their statuses by rank, None while one runs."""
    deadline = time.monotonic() + seconds
    while True:
        statuses = [rank.status for rank in started]
        if None not in statuses or is_over(statuses) or time.monotonic() > deadline:
            return statuses
        time.sleep(PAUSE)


def _signal(started: Sequence[_Rank], number: int) -> None:
    """Send a signal to the processes and to those that they started in their groups."""
    for rank in started:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(rank.process.pid, number)


def _end(started: Sequence[_Rank]) -> None:
    """End all started ranks by SIGTERM, then after ENDING seconds, or Ctrl-C, by SIGKILL."""
    hasten = threading.Event()
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, lambda *_: hasten.set()) if is_main else None
    try:
        _signal(started, signal.SIGTERM)
        _wait(started, ENDING, lambda _: hasten.is_set())
        for rank in started:
            rank.end()
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)


def _free_port() -> int:
    """Return a port of this machine that is free now."""
    with socket.create_server((LOOPBACK, 0)) as sock:
        return int(sock.getsockname()[1])
