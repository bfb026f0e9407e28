# SPDX-License-Identifier: MIT
"""The engine for one machine: each two ranks have a pair of connected sockets, which nobody else
can reach. Who waits for one peer looks at all.

Python's timeouts of sockets end also where signals come all the time; the kernel's begin anew.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
from collections.abc import Iterator, Mapping, MutableMapping
from multiprocessing.connection import wait

from ..errors import GroupError, raise_if_from_handler
from .engine import Engine, pack

# Environment variables of a process that `cupy-training-ops launch` started: file descriptors of
# its sockets by rank, none for itself ("3,,4" of rank 1 of 3), and the launcher's process id.
SOCKETS, LAUNCHER = "CTO_SOCKETS", "CTO_LAUNCHER"

Sockets = Mapping[int, socket.socket]  # by the ranks at their other ends

_LENGTH = struct.Struct("<Q")  # bytes of a message, sent ahead of it
_MAX_WAIT = 1e6  # seconds
_MAX_READ = 2**20  # bytes of one recv, which allocates all that it asks for


class Embedded(Engine):
    """A rank with a socket to each other one."""

    name = "embedded"

    def __init__(self, rank: int, sockets: Sockets, timeout: float) -> None:
        """sockets: connected ones, by the rank at the other end. timeout: seconds."""
        super().__init__(rank, len(sockets) + 1, timeout)
        self.sockets = sockets
        self._open = {sock: peer for peer, sock in sockets.items()}  # not yet at their end
        self._half_told: set[int] = set()  # peers that got only a part of a message so far

    def put(self, peer: int, data: bytearray, seconds: float) -> None:
        """Send `data`, the bytes of a message, to rank `peer` within `seconds`.

        If its connection is closed, raise GroupError with the reason it left, or EOFError without
        one.
        """
        sock = self.sockets[peer]
        self._half_told.add(peer)
        try:
            _say(sock, data, seconds)
        except TimeoutError:
            raise
        except OSError as error:
            raise_if_from_handler(error)
            while sock in self._open:  # what it said before it went
                self._read(sock)
            words = self.told or self._left.get(peer)
            raise (GroupError(words) if words else EOFError) from None
        self._half_told.discard(peer)

    def listen(self, peer: int | None, seconds: float) -> None:
        """Read a message from each socket that has one; wait up to `seconds` for the first."""
        for sock in wait(list(self._open), min(seconds, _MAX_WAIT)):
            assert isinstance(sock, socket.socket)
            self._read(sock)

    def farewell(self, number: int, words: str) -> None:
        """Send the last words, a message with number LEFT or FAULT, and shut down; a peer with half
        a message gets none, as they would be read as its rest."""
        for peer, sock in self.sockets.items():
            with contextlib.suppress(OSError):
                if peer not in self._half_told:
                    _say(sock, pack(number, words), 0)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # a thread that waits for it wakes up

    def release(self) -> None:
        """Close all sockets."""
        self._open.clear()
        for sock in self.sockets.values():
            with contextlib.suppress(OSError):
                sock.close()

    def _read(self, sock: socket.socket) -> None:
        """Read a message from a peer's socket, or note that its connection ended."""
        peer = self._open[sock]
        try:
            sock.settimeout(min(self.timeout, _MAX_WAIT))
            (length,) = _LENGTH.unpack(_receive(sock, _LENGTH.size))
            self.hear(peer, _receive(sock, length))
        except TimeoutError as error:
            raise_if_from_handler(error)
            late = f"half a message came, and {self.timeout:g} seconds nothing"
            self.note(f"rank {peer} is late: {late}")
        except OSError as error:
            raise_if_from_handler(error)
            gone = f"rank {peer} is gone"
            if error.errno == errno.EBADF:
                gone = f"rank {self.rank} lost its connection to rank {peer}"
            self.note(f"{gone}: {error.strerror or 'its connection ended'}")
        if self.told or peer in self._left:
            del self._open[sock]


def _say(sock: socket.socket, data: bytearray, seconds: float) -> None:
    """Send the length of a message, then its bytes, within `seconds` each."""
    sock.settimeout(min(seconds, _MAX_WAIT))
    sock.sendall(_LENGTH.pack(len(data)))
    sock.sendall(data)


def _receive(sock: socket.socket, n: int) -> bytearray:
    """Receive exactly n bytes; raise ConnectionResetError if the connection ends before."""
    data = bytearray()
    while len(data) < n:
        part = sock.recv(min(n - len(data), _MAX_READ))
        if not part:
            raise ConnectionResetError(errno.ECONNRESET, "its connection ended")
        data += part
    return data


def socket_pairs(n: int) -> Iterator[dict[int, socket.socket]]:
    """Yield for each of n ranks {peer: socket to it}, rank by rank.

    A pair of sockets is made as its lower rank's are yielded, so few are open if the caller closes
    them early.
    """
    ends: list[dict[int, socket.socket]] = [{} for _ in range(n)]
    try:
        for rank, own in enumerate(ends):
            for peer in range(rank + 1, n):
                own[peer], ends[peer][rank] = socket.socketpair()
            yield own
    except BaseException as error:
        for sock in (sock for own in ends for sock in own.values()):
            sock.close()
        if not isinstance(error, OSError):
            raise
        words = f"ProcessGroup: cannot connect {n} ranks: {error.strerror} (ulimit -n)"
        raise GroupError(words) from None


def from_launcher(variables: MutableMapping[str, str], timeout: float) -> Embedded:
    """Make the engine of a process that `launch` started, from its inherited sockets, once.

    variables: the environment, with LAUNCHER; SOCKETS is removed. timeout: seconds to wait for
    another rank. Raises GroupError for a second time, or in a grandchild.
    """
    own = variables.pop(SOCKETS, "none") if variables[LAUNCHER] == str(os.getppid()) else "none"
    try:
        descriptors = [int(text) if text else None for text in own.split(",")]
        rank = descriptors.index(None)
        ends = {peer: fd for peer, fd in enumerate(descriptors) if fd is not None}
        if not all(stat.S_ISSOCK(os.fstat(fd).st_mode) for fd in ends.values()):
            raise ValueError
    except (ValueError, OSError, OverflowError) as error:
        raise_if_from_handler(error)
        words = "a process that launch started makes one group, itself: it was made here before"
        raise GroupError(f"ProcessGroup: {words}, or another process started this one") from None
    sockets = {peer: socket.socket(fileno=fd) for peer, fd in ends.items()}
    for sock in sockets.values():
        sock.set_inheritable(False)
    made = Embedded(rank, sockets, timeout)
    made.local_size = made.size
    return made
