# SPDX-License-Identifier: MIT
"""A rank's end of its connection: messages to and from the others, kept alive by a thread.

The first fault, its own or one that it is told of, ends all waiting with the same words.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait

from ..errors import GroupError
from . import greeting, wire
from .address import Address, resolved
from .wire import Kind, Message, Part, WireError

RETRY = 0.05  # seconds between attempts to reach rank 0
GRACE = 3.0  # seconds more for those who wait for one that waits for others
LINGER = 5.0  # seconds that a rank waits for the others as it closes
MAX_INTERVAL = 1.0  # seconds between signs of life, at most


def connected(
    address: Address, rank: int, size: int, secret: bytes, timeout: float
) -> socket.socket:
    """A connection to rank 0, which may start later than this one."""
    deadline = time.monotonic() + timeout
    last = "nothing listens there"
    while True:
        try:
            sock = _reached(address, deadline)
            try:
                greeting.join(sock, rank, size, secret, deadline)
            except BaseException:
                sock.close()
                raise
            sock.settimeout(timeout)
            return sock
        except greeting.RefusedError as error:
            raise GroupError(f"ProcessGroup: rank 0 at {address} refused: {error}") from None
        except (OSError, EOFError, WireError) as error:
            last = str(getattr(error, "strerror", None) or error) or last
        if time.monotonic() + RETRY > deadline:
            words = f"rank 0 was not reached at {address} within {timeout:g} seconds: {last}"
            raise GroupError(f"ProcessGroup: {words}")
        time.sleep(RETRY)


def _reached(address: Address, deadline: float) -> socket.socket:
    name = resolved(address)[0][4]
    sock = socket.create_connection(name[:2], timeout=wire.remaining(deadline))
    if sock.getsockname() == sock.getpeername():  # while nothing listens, TCP may meet itself
        sock.close()
        raise OSError("nothing listens there")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Link:
    """The connection of one rank, and what has come over it."""

    def __init__(self, sock: socket.socket, rank: int, timeout: float) -> None:
        self.rank = rank
        self.timeout = timeout
        self.fault = ""  # why the group cannot go on
        self.on_fault: Callable[[str], None] | None = None
        self.on_tick: Callable[[], str] | None = None  # a fault of its own that it finds
        self.needs_all: Callable[[], bool] = bool  # whether a rank that fails is everybody's fault
        self._socket = sock
        self._writing = threading.Lock()
        self._news = threading.Condition()
        self._inbox: dict[tuple[int, int], deque[Message]] = {}
        self._left: dict[int, str] = {}  # and why
        self._is_ready = self._is_closing = False
        self._thread = threading.Thread(target=self._listen, name="cto-link", daemon=True)
        self._thread.start()

    # ---- messages --------------------------------------------------------------------------------

    def send(self, destination: int, channel: int, text: str, parts: Sequence[Part] = ()) -> None:
        """A message to another rank; it waits there until it is asked for."""
        try:
            with self._writing:
                body = wire.packed(text, parts)
                wire.write_frame(self._socket, Kind.MESSAGE, self.rank, destination, channel, body)
        except OSError as error:
            self._end(f"rank 0 is gone: {error}")
            raise GroupError(self.fault) from None

    def receive(
        self, source: int, channel: int, what: str, timeout: float, *, keep: bool = False
    ) -> Message:
        """The next message of a rank, which `keep` leaves there; the words say what it is."""
        with self._news:
            inbox = self._inbox.setdefault((source, channel), deque())
            self._news.wait_for(lambda: inbox or self.fault or source in self._left, timeout)
            if inbox:
                return inbox[0] if keep else inbox.popleft()
            if self.fault:
                raise GroupError(self.fault)
            if source in self._left:
                words = self._left[source] or f"rank {source} closed its group without {what}"
                raise GroupError(words)
        self.declare(f"rank {source} is late: no {what} within {self.timeout:g} seconds")
        raise GroupError(self.fault)

    def waits_for_all(self) -> None:
        """Return when all ranks have joined."""
        with self._news:
            self._news.wait_for(lambda: self._is_ready or self.fault, self.timeout + GRACE)
        if not self._is_ready:
            raise GroupError(self.fault or "the other ranks did not join in time")

    # ---- faults and the end ----------------------------------------------------------------------

    def declare(self, words: str) -> None:
        """A fault that this rank has found, for all ranks."""
        with contextlib.suppress(OSError), self._writing:
            body = words.encode()[: wire.MAX_NOTE]
            wire.write_frame(self._socket, Kind.FAULT, self.rank, body=(body,))
        self._end(words)

    def leave(self, words: str = "") -> None:
        """Tell the others that this rank says no more, and let what is under way arrive."""
        self._is_closing = True
        with contextlib.suppress(OSError), self._writing:
            body = words.encode()[: wire.MAX_NOTE]
            wire.write_frame(self._socket, Kind.LEFT, self.rank, body=(body,))
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End the connection once the other end has ended it too."""
        self._is_closing = True
        if threading.current_thread() is not self._thread:
            self._thread.join(LINGER)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def abandon(self, words: str) -> None:
        """In a forked child: say nothing more, and refuse whatever is asked."""
        self._writing, self._news = threading.Lock(), threading.Condition()
        self._is_closing, self.fault = True, words
        self._socket.close()

    def _end(self, words: str) -> None:
        with self._news:
            is_first = not self.fault
            self.fault = self.fault or words
            self._news.notify_all()
        if is_first and self.on_fault is not None and not self._is_closing:
            self.on_fault(words)

    # ---- the thread ------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Read what comes and give signs of life, until the connection ends."""
        interval = min(MAX_INTERVAL, self.timeout / 4)
        heard = spoken = time.monotonic()
        try:
            while True:
                if wait([self._socket], interval):
                    self._take(wire.read_frame(self._socket))
                    heard = time.monotonic()
                elif time.monotonic() - heard > self.timeout:
                    raise TimeoutError(f"nothing was heard of it for {self.timeout:g} seconds")
                if time.monotonic() - spoken >= interval:
                    self._live()
                    spoken = time.monotonic()
        except (OSError, EOFError, ValueError, WireError) as error:
            if not self._is_closing:
                self._end(f"rank 0 is gone: {error}")

    def _live(self) -> None:
        """A sign of life, and a look at what may be overdue."""
        if not self._is_closing:
            with self._writing:
                wire.write_frame(self._socket, Kind.PING, self.rank)
        words = self.on_tick() if self.on_tick is not None and not self.fault else ""
        if words:
            self.declare(words)

    def _take(self, frame: wire.Frame) -> None:
        note = "" if frame.kind is Kind.MESSAGE else str(frame.body, "utf-8", "replace")
        if frame.kind is Kind.FAULT or (frame.kind is Kind.LEFT and note and self.needs_all()):
            self._end(note)
            return
        with self._news:
            if frame.kind is Kind.MESSAGE:
                inbox = self._inbox.setdefault((frame.source, frame.channel), deque())
                inbox.append(wire.unpacked(frame.body))
            elif frame.kind is Kind.LEFT:
                self._left[frame.source] = note
            elif frame.kind is Kind.READY:
                self._is_ready = True
            self._news.notify_all()
