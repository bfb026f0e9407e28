# SPDX-License-Identifier: MIT
"""The engine for one machine: each two ranks have a pair of connected sockets, which nobody else
can reach. `launch` hands them to its processes; for threads they are made here.

No thread serves them: who waits for one peer looks at all. Framing is multiprocessing.connection's,
of bytes alone, over descriptors that do not block: what is waited for is polled, with an end.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import socket
import stat
import time
from collections import deque
from collections.abc import Mapping, MutableMapping
from multiprocessing.connection import Connection, wait
from typing import Any

from ..errors import GroupError
from . import wire
from .engine import Engine
from .wire import Message

SOCKETS, LAUNCHER = "CTO_SOCKETS", "CTO_LAUNCHER"  # descriptors by rank; the process of `launch`
LEFT, FAULT = 254, 255  # in the place of a channel

_MAX_WAIT = 1e6  # seconds
_MAX_READ = 2**20  # bytes: room is made for all that is asked for


class Pipe(Connection):
    """A connection whose waits end, also where signals come all the time.

    The kernel's timeouts of a socket begin anew with each signal.
    """

    def __init__(self, sock: socket.socket, to_read: float, to_write: float) -> None:
        sock.setblocking(False)
        super().__init__(sock.detach())
        self.to_read, self.to_write = to_read, to_write

    def _recv(self, size: int, read: Any = None) -> Any:
        return super()._recv(size, self._read_in_time)  # type: ignore[misc]

    def _send(self, buf: Any, write: Any = None) -> None:
        super()._send(buf, self._write_in_time)  # type: ignore[misc]

    def _read_in_time(self, fd: int, size: int) -> bytes:
        _await(fd, select.POLLIN, self.to_read)
        return os.read(fd, min(size, _MAX_READ))

    def _write_in_time(self, fd: int, data: Any) -> int:
        _await(fd, select.POLLOUT, self.to_write)
        return os.write(fd, data)


def _await(fd: int, event: int, seconds: float) -> None:
    """TimeoutError where nothing can be read or written for so long."""
    poll = select.poll()
    poll.register(fd, event)
    if not poll.poll(min(seconds, _MAX_WAIT) * 1000):
        raise TimeoutError


class Embedded(Engine):
    """A rank with a connection to each other one."""

    name = "embedded"

    def __init__(
        self,
        rank: int,
        sockets: Mapping[int, socket.socket],
        timeout: float,
        local_size: int | None = None,
    ) -> None:
        super().__init__(rank, len(sockets) + 1, timeout, rank, local_size)
        self._pipes = {
            peer: Pipe(sock, timeout, self.patience(peer)) for peer, sock in sockets.items()
        }
        self._heard = {pipe: peer for peer, pipe in self._pipes.items()}  # may still say something
        self._inbox: dict[tuple[int, int], deque[Message]] = {}
        self._left: dict[int, str] = {}  # and what went wrong there
        self._halves: set[int] = set()  # to whom a message is under way

    def put(self, peer: int, channel: int, data: bytes) -> None:
        pipe = self._pipes[peer]
        self._halves.add(peer)
        try:
            pipe.send_bytes(data)
        except TimeoutError:
            raise
        except OSError as error:
            while pipe in self._heard:  # what it said before it went
                self._read(peer, pipe)
            raise GroupError(self._gone(peer, error)) from None
        self._halves.discard(peer)

    def take(self, peer: int, channel: int, seconds: float) -> Message:
        inbox = self._inbox.setdefault((peer, channel), deque())
        deadline = time.monotonic() + seconds
        while not inbox:
            if self._left.get(peer):
                raise GroupError(self._left[peer])
            if peer in self._left:
                raise EOFError
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._listen(min(left, _MAX_WAIT))
        return inbox.popleft()

    def news(self) -> str:
        try:
            self._listen(0)
        except GroupError as error:
            return str(error)
        return next(filter(None, self._left.values()), "")

    def tell(self, words: str) -> None:
        for peer, pipe in self._pipes.items():
            with contextlib.suppress(OSError, ValueError):
                if peer not in self._halves:
                    self._say(pipe, FAULT, words)
                with socket.socket(fileno=os.dup(pipe.fileno())) as sock:
                    sock.shutdown(socket.SHUT_RDWR)  # whoever waits for it wakes up

    def leave(self, words: str) -> None:
        self.last_words = wire.printable(words)

    def close(self) -> None:
        for pipe in self._pipes.values():
            with contextlib.suppress(OSError, ValueError):
                if not self.fault:
                    self._say(pipe, LEFT, self.last_words)
        self.abandon()

    def abandon(self) -> None:
        for pipe in self._pipes.values():
            with contextlib.suppress(OSError):
                pipe.close()
        self._heard.clear()

    def _say(self, pipe: Pipe, kind: int, words: str) -> None:
        """The last words; a peer that does not read is not waited for."""
        pipe.to_write = 0
        pipe.send_bytes(wire.packed(kind, 0, words))

    def _listen(self, seconds: float) -> None:
        for pipe in wait(list(self._heard), seconds):
            assert isinstance(pipe, Pipe)
            self._read(self._heard[pipe], pipe)

    def _read(self, peer: int, pipe: Pipe) -> None:
        """A message into its inbox; GroupError where the rank is gone, or ended the group."""
        try:
            found = wire.unpacked(pipe.recv_bytes())
        except (EOFError, OSError) as error:
            del self._heard[pipe]
            raise GroupError(self._gone(peer, error)) from None
        if found.channel not in (LEFT, FAULT):
            self._inbox.setdefault((peer, found.channel), deque()).append(found)
            return
        del self._heard[pipe]
        words = wire.printable(found.text)
        if found.channel == FAULT:
            raise GroupError(words)
        self._left[peer] = words

    def _gone(self, peer: int, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"rank {peer} is late: half a message came, and {self.timeout:g} seconds nothing"
        if peer in self._left:
            return self._left[peer] or f"rank {peer} closed its group"
        words = getattr(error, "strerror", None) or "its connection ended"
        if getattr(error, "errno", None) == errno.EBADF:
            return f"rank {self.rank} lost its connection to rank {peer}: {words}"
        return f"rank {peer} is gone: {words}"


def in_threads(n: int, timeout: float) -> list[Embedded]:
    """The engines of n ranks in one process."""
    found: list[dict[int, socket.socket]] = [{} for _ in range(n)]
    try:
        for a, b in itertools.combinations(range(n), 2):
            found[a][b], found[b][a] = socket.socketpair()
    except OSError as error:
        for sock in itertools.chain.from_iterable(ends.values() for ends in found):
            sock.close()
        words = f"ProcessGroup.in_threads: cannot connect {n} ranks: {error.strerror}"
        raise GroupError(words) from None
    return [Embedded(rank, sockets, timeout) for rank, sockets in enumerate(found)]


def inherited(variables: MutableMapping[str, str], timeout: float) -> Embedded:
    """The engine of a process that `launch` started; there is one in each."""
    own = variables.pop(SOCKETS, "none") if variables[LAUNCHER] == str(os.getppid()) else "none"
    try:
        descriptors = [int(text) if text else None for text in own.split(",")]
        rank = descriptors.index(None)
        found = {peer: fd for peer, fd in enumerate(descriptors) if fd is not None}
        if not all(stat.S_ISSOCK(os.fstat(fd).st_mode) for fd in found.values()):
            raise ValueError
    except (ValueError, OSError, OverflowError):
        raise GroupError(
            "ProcessGroup: a process that launch started makes one group, itself: it was made "
            "here before, or this process was started by another one"
        ) from None
    for fd in found.values():
        os.set_inheritable(fd, False)
    sockets = {peer: socket.socket(fileno=fd) for peer, fd in found.items()}
    return Embedded(rank, sockets, timeout, len(descriptors))
