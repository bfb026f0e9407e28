# SPDX-License-Identifier: MIT
"""Rank 0's switch: lets ranks in, hands their messages on, and says when one is gone.

There is a thread for each connection, and until all ranks have joined one that accepts.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from multiprocessing.connection import wait

from . import greeting, wire
from .address import Address, listener
from .wire import Frame, Kind, WireError

GREETING_TIMEOUT = 5.0  # seconds that one who connects has to prove who it is
MAX_STRANGERS = 64  # greeted at a time, beside the ranks
MAX_TOLD = 3  # refused connections that a message tells of

LOST = (OSError, EOFError, WireError)


class Hub:
    """The connections of all ranks."""

    def __init__(self, size: int, address: Address, secret: bytes, timeout: float) -> None:
        self._size = size
        self._secret = secret
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._lock = threading.Lock()  # of everything below
        self._ranks: dict[int, socket.socket] = {}
        self._writing = {rank: threading.Lock() for rank in range(size)}
        self._left: set[int] = set()
        self._refused: list[str] = []
        self._n_greeted = 0
        self._is_over = False
        self.all_left = threading.Event()
        self._listener = listener(address)
        self._start(self._accept)

    def attach(self) -> socket.socket:
        """Rank 0's own end of a connection, which is no socket of the network's."""
        ours, its = socket.socketpair()
        self._admit(0, ours)
        return its

    def close(self) -> None:
        """End all connections."""
        with self._lock:
            self._is_over = True
            found = list(self._ranks.values())
        for sock in found:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def abandon(self) -> None:
        """Let go, in a forked child, of what its parent serves."""
        for sock in (self._listener, *self._ranks.values()):
            sock.close()

    # ---- joining ---------------------------------------------------------------------------------

    def _start(self, target: object, *args: object) -> None:
        threading.Thread(target=target, args=args, name="cto-hub", daemon=True).start()  # type: ignore[arg-type]

    def _accept(self) -> None:
        """Greet whoever comes, each in a thread of its own: a slow one keeps nobody waiting."""
        with self._listener as sock:
            sock.settimeout(0.05)
            while not self._is_over and len(self._ranks) < self._size:
                if time.monotonic() > self._deadline:
                    self._fault(self._who_is_missing())
                    return
                with contextlib.suppress(TimeoutError):
                    found, peer = sock.accept()
                    self._receive(found, str(peer[0]))

    def _receive(self, sock: socket.socket, peer: str) -> None:
        with self._lock:
            if self._n_greeted >= MAX_STRANGERS + self._size:
                sock.close()
                return
            self._n_greeted += 1
        self._start(self._greet, sock, peer)

    def _greet(self, sock: socket.socket, peer: str) -> None:
        try:
            deadline = time.monotonic() + min(GREETING_TIMEOUT, self._timeout)
            joining = greeting.opened(sock, self._secret, deadline)
            sock.settimeout(self._timeout)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            words = self._objection(joining)
            if words:
                greeting.close_with(sock, words)
                raise WireError(words)
            greeting.accept(sock, joining)
        except LOST as error:
            with self._lock:
                self._refused.append(f"{peer}: {error}")
            sock.close()
        else:
            self._admit(joining.rank, sock)
        finally:
            with self._lock:
                self._n_greeted -= 1

    def _objection(self, joining: greeting.Joining) -> str:
        """Why a rank cannot join; its place is taken where it can."""
        rank, size, _ = joining
        if size != self._size:
            return f"rank {rank} is of a group of {size}, rank 0 of {self._size}"
        with self._lock:
            if not 0 < rank < size:
                return f"there is no rank {rank} to join a group of {size}"
            if rank in self._ranks:
                return f"rank {rank} has joined already"
        return ""

    def _admit(self, rank: int, sock: socket.socket) -> None:
        with self._lock:
            if rank in self._ranks:
                sock.close()
                return
            self._ranks[rank] = sock
            is_last = len(self._ranks) == self._size
        self._start(self._serve, rank, sock)
        if is_last:
            self._broadcast(Kind.READY, b"")

    def _who_is_missing(self) -> str:
        """Who did not come in time, and who came instead."""
        missing = [str(rank) for rank in range(self._size) if rank not in self._ranks]
        told = f"; refused connections: {'; '.join(self._refused[:MAX_TOLD])}"
        return (
            f"rank{'s' if len(missing) > 1 else ''} {', '.join(missing)} did not join within "
            f"{self._timeout:g} seconds{told if self._refused else ''}"
        )

    # ---- working ---------------------------------------------------------------------------------

    def _serve(self, rank: int, sock: socket.socket) -> None:
        """Hand on what a rank says until it leaves or is gone."""
        try:
            while self._is_heard(sock):
                frame = wire.read_frame(sock)
                if frame.source != rank:
                    raise WireError(f"it speaks as rank {frame.source}")
                self._take(frame)
        except LOST as error:
            if rank not in self._left:
                self._fault(f"rank {rank} is gone: {error}")
        finally:
            self._leave(rank)
            sock.close()

    def _is_heard(self, sock: socket.socket) -> bool:
        """Whether there is more to read; TimeoutError where a rank has been silent too long."""
        if wait([sock], self._timeout):
            return True
        raise TimeoutError(f"nothing was heard of it for {self._timeout:g} seconds")

    def _take(self, frame: Frame) -> None:
        if frame.kind is Kind.MESSAGE:
            self._write(frame.destination, frame)
        elif frame.kind is Kind.PING:
            self._write(frame.source, frame)
        elif frame.kind is Kind.FAULT:
            self._fault(str(frame.body, "utf-8", "replace"))
        elif frame.kind is Kind.LEFT:
            self._left.add(frame.source)
            self._broadcast(Kind.LEFT, bytes(frame.body), frame.source)

    def _write(self, destination: int, frame: Frame) -> None:
        """To one rank; a rank that cannot be written to is found out by its own thread."""
        sock = self._ranks.get(destination)
        if sock is None:
            return
        body = (frame.body,) if frame.body else ()
        with contextlib.suppress(OSError), self._writing[destination]:
            wire.write_frame(sock, frame.kind, frame.source, destination, frame.channel, body)

    def _broadcast(self, kind: Kind, body: bytes, source: int = 0) -> None:
        for rank in list(self._ranks):
            self._write(rank, Frame(kind, source, rank, 0, memoryview(body)))

    def _fault(self, words: str) -> None:
        """Tell all ranks, once, that and why the group cannot go on."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        self._broadcast(Kind.FAULT, words.encode()[: wire.MAX_NOTE])

    def _leave(self, rank: int) -> None:
        self._left.add(rank)
        if len(self._left) >= len(self._ranks):
            self.all_left.set()
