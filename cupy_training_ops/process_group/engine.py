# SPDX-License-Identifier: MIT
"""The protocol of an engine: messages between ranks, and an end that all of them notice."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import ClassVar

from ..errors import GroupError
from . import wire
from .wire import Message, Part, packed

GRACE = 1.0  # seconds more for those who wait for one that waits for others
SHORTEST = 1e-4  # seconds between looks at what is waited for
STOPPED = "stopped in the middle of a call"


class Engine:
    """How one rank reaches the others; all but this class's own methods is the engine's.

    Nothing here is used by two threads at once: who uses an engine holds its `lock`.
    """

    name: ClassVar[str] = "alone"
    longest: ClassVar[float] = 2e-4  # seconds between looks at what is waited for

    def __init__(
        self,
        rank: int,
        size: int,
        timeout: float,
        local_rank: int | None = None,
        local_size: int | None = None,
    ) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.local_rank = rank if local_rank is None else local_rank
        self.local_size = local_size
        self.fault = ""  # why the group cannot go on; the first words count
        self.last_words = ""  # what went wrong here, of a rank that closes
        self.lock = threading.Lock()
        self._is_told = False
        self._numbers: Counter[tuple[str, int, int]] = Counter()
        self._kept: dict[tuple[int, int], Message] = {}

    # ---- what an engine writes: here that of a rank alone, which has nobody to tell --------------

    def put(self, peer: int, channel: int, data: bytes) -> None:
        """Say a message; TimeoutError, EOFError, GroupError where the peer does not take it."""
        raise NotImplementedError

    def take(self, peer: int, channel: int, seconds: float) -> Message:
        """The next message of a peer; TimeoutError after so many seconds, EOFError if it left."""
        raise NotImplementedError

    def tell(self, words: str) -> None:
        """End the group for the others, as well as it still can be, and without waiting."""

    def news(self) -> str:
        """The words with which another rank ended the group, as far as is known without waiting."""
        return ""

    def has_left(self, peer: int) -> bool:
        """Whether a rank closed its group, as far as is known without waiting."""
        return False

    def leave(self, words: str) -> None:
        """Say, as this rank closes after an error, what went wrong to those who wait for it."""
        self.last_words = wire.printable(words)
        self.end(words)

    def close(self) -> None:
        """Say that no more will come, and let go of everything."""

    def abandon(self) -> None:
        """Let go of everything in a forked child, without a word to anybody."""

    # ---- what all of them have -------------------------------------------------------------------

    def send(self, peer: int, channel: int, text: str, parts: Sequence[Part] = ()) -> None:
        """A message to another rank, with its number."""
        self._numbers["to", peer, channel] += 1
        number = self._numbers["to", peer, channel]
        try:
            self.put(peer, channel, packed(channel, number, text, parts))
        except TimeoutError:
            late = f"rank {peer} is late: it took no message for {self.timeout:g} seconds"
            raise GroupError(late) from None
        except EOFError:
            raise GroupError(f"rank {peer} closed its group without taking a message") from None

    def receive(
        self, peer: int, channel: int, what: str, seconds: float, *, keep: bool = False
    ) -> Message:
        """The next message of a rank, which `keep` leaves there; the words say what it is."""
        found = self._kept.pop((peer, channel), None)
        if found is None:
            try:
                found = self.take(peer, channel, seconds)
            except TimeoutError:
                late = f"rank {peer} is late: no {what} within {self.timeout:g} seconds"
                raise GroupError(late) from None
            except EOFError:
                raise GroupError(f"rank {peer} closed its group without {what}") from None
            self._numbers["of", peer, channel] += 1
            number = self._numbers["of", peer, channel]
            if found.number != number:
                words = f"rank {peer} is at message {found.number}, rank {self.rank} at {number}"
                raise GroupError(words)
        if keep:
            self._kept[peer, channel] = found
        return found

    def until(
        self, is_done: Callable[[], object], seconds: float, peer: int | None = None, looks: int = 1
    ) -> None:
        """Look until it is done, so many times before the first pause.

        Where it waits for a peer: GroupError where the group ended, EOFError where the peer left.
        """
        deadline, pause = time.monotonic() + seconds, SHORTEST
        while not any(is_done() for _ in range(looks)):
            looks = 1
            words = "" if peer is None else self.fault or self.news()
            if words:
                raise GroupError(words)
            if peer is not None and self.has_left(peer) and not is_done():
                raise EOFError
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(pause)
            pause = min(2 * pause, self.longest)

    def patience(self, peer: int) -> float:
        """Seconds that a peer may take to take a message; the first rank of a call waits less."""
        return self.timeout + (GRACE if peer < self.rank else 0.0)

    def end(self, words: str) -> None:
        """Note that and why the group cannot go on, and tell the others; from any thread."""
        if not self._is_told:
            self._is_told = True
            self.fault = self.fault or STOPPED  # before anything that may fail
            self.fault = wire.printable(words)
            with contextlib.suppress(Exception):
                self.tell(self.fault)
