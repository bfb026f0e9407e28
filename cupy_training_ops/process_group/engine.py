# SPDX-License-Identifier: MIT
"""How a rank reaches the others: whole messages in order, and an end that all of them notice."""

from __future__ import annotations

import contextlib
import itertools
import struct
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from ..errors import GroupError, printable, raise_if_from_handler

GRACE = 1.0  # seconds more for those who wait for one that waits for others
SPIN = 1e-3  # seconds of looking without a pause
STOPPED = "stopped in the middle of a call"
LEFT, FAULT = 0, 2**64 - 1  # in the place of a number: the last words of a rank
MAX_WORDS = 1000  # characters of what another rank says, in an error

_HEAD = struct.Struct("<QII")  # number; bytes of the text, how many parts

SEPARATOR = "; "  # in a description, of a call and its arrays
DISAGREE = "the ranks disagree: "
AGAIN = "once more "  # ahead of a description that the receiver need not answer

Ranks = tuple[int, ...]  # of a sub-group, in order
Part = bytes | bytearray | memoryview
# From the arrays of each rank, as bytes, to what each gets; None where descriptions are all.
Answer = Callable[[list[list[memoryview]]], Sequence[Sequence[Part]]] | None


class Message(NamedTuple):
    """The n-th message from one rank to another: a text and the bytes of arrays."""

    number: int
    text: str
    parts: list[memoryview]


def pack(number: int, text: str, parts: Sequence[Part] = ()) -> bytearray:
    """A message as bytes: a head, the lengths of the parts, the text, the parts."""
    words = text.encode()
    head = _HEAD.pack(number, len(words), len(parts))
    return bytearray().join([head, struct.pack(f"<{len(parts)}Q", *map(len, parts)), words, *parts])


def unpack(data: Part) -> Message:
    """The message that a peer sent; the end of the group where it cannot be one."""
    view = memoryview(data)
    with contextlib.suppress(struct.error):
        number, n_text, n = _HEAD.unpack_from(view)
        lengths = struct.unpack_from(f"<{n}Q", view, _HEAD.size)
        ends = list(itertools.accumulate(lengths, initial=_HEAD.size + 8 * n + n_text))
        if ends[-1] == len(view):
            text = str(view[ends[0] - n_text : ends[0]], "utf-8", "replace")
            return Message(number, text, [view[a:b] for a, b in itertools.pairwise(ends)])
    return Message(FAULT, f"a message came whose {len(view)} bytes cannot be read", [])


def quote(text: str) -> str:
    """The beginning of a text that another rank sent, as a terminal may show it."""
    return printable(text[:MAX_WORDS])


def disagreement(ranks: Sequence[int], texts: Sequence[str]) -> str:
    """Words that name a rank whose call differs from the first one's; empty where all agree."""
    for rank, text in zip(ranks, texts, strict=True):
        if text != texts[0]:
            first, other = map(quote, _difference(texts[0], text))
            return f"{DISAGREE}rank {ranks[0]} calls {first}, rank {rank} calls {other}"
    return ""


def _difference(mine: str, theirs: str) -> tuple[str, str]:
    """The calls of two descriptions, and the first arrays in which they differ."""
    a, b = mine.split(SEPARATOR), theirs.split(SEPARATOR)
    place = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
    if place == 0:
        return a[0], b[0]
    return f"{a[0]}, number {place - 1} {a[place]}", f"{b[0]}, number {place - 1} {b[place]}"


class Engine:
    """One rank's messages. Five methods are those of what carries them; this rank is alone.

    Between two ranks each message has its number, and another than the next ends the group. What
    has come is taken, also from a rank that has left or ended the group behind it. Who uses an
    engine holds its `lock`, but for `end`.
    """

    name: ClassVar[str] = "alone"
    pause: ClassVar[float] = 0.0  # seconds between looks, at most, where `listen` does not wait

    def __init__(self, rank: int, size: int, timeout: float) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.local_rank = rank  # and how many there are on the node, if it is known
        self.local_size: int | None = None
        self.others = [peer for peer in range(size) if peer != rank]
        self.fault = ""  # why the group cannot go on; the first words count
        self.told = ""  # the same, as others or their ends told it
        self.last_words = ""  # what went wrong here, of a rank that leaves
        self.lock = threading.Lock()
        self.sent, self.heard = Counter[int](), Counter[int]()  # messages
        self._inbox: defaultdict[int, deque[Message]] = defaultdict(deque)
        self._left: dict[int, str] = {}  # and what went wrong there
        self.has_ended = False  # so that the others need not be told

    def put(self, peer: int, data: bytearray, seconds: float) -> None:
        """Give a peer a message; TimeoutError, EOFError, GroupError where it does not take it."""
        raise NotImplementedError

    def listen(self, peer: int | None, seconds: float) -> None:
        """Note what has come, of this peer at least; an engine may wait so long for more."""

    def farewell(self, number: int, words: str) -> None:
        """Last words to all others, as well as they still can be said, and without waiting."""

    def release(self) -> None:
        """Let go of everything."""

    def abandon(self) -> None:
        """Let go of everything in a forked child, without a word to anybody."""
        self.release()

    def send(self, peer: int, text: str, parts: Sequence[Part] = ()) -> None:
        """A message to another rank."""
        self.sent[peer] += 1
        more = GRACE if peer < self.rank else 0.0  # the first rank of a call waits less
        try:
            self.put(peer, pack(self.sent[peer], text, parts), self.timeout + more)
        except TimeoutError as error:
            raise_if_from_handler(error)
            late = f"rank {peer} is late: it took no message for {self.timeout:g} seconds"
            raise GroupError(late) from None
        except EOFError as error:
            raise_if_from_handler(error)
            raise GroupError(f"rank {peer} closed its group without taking a message") from None

    def receive(self, peer: int, what: str, seconds: float, *, keep: bool = False) -> Message:
        """The next message of a rank, within `seconds`.

        what: the message's name, for errors. keep: leave the message in the inbox.
        """
        inbox = self._inbox[peer]
        try:
            self.until(lambda: inbox, seconds, peer)
        except TimeoutError as error:
            raise_if_from_handler(error)
            late = f"rank {peer} is late: no {what} within {self.timeout:g} seconds"
            raise GroupError(late) from None
        except EOFError as error:
            raise_if_from_handler(error)
            raise GroupError(f"rank {peer} closed its group without {what}") from None
        return inbox[0] if keep else inbox.popleft()

    def until(self, is_done: Callable[[], object], seconds: float, peer: int) -> None:
        """Listen until `is_done()` is true.

        GroupError as the group ends, EOFError as the peer leaves, TimeoutError behind `seconds`.
        """
        since = time.monotonic()
        while not is_done():
            waited = time.monotonic() - since
            if words := self.fault or self.told:
                raise GroupError(words)
            if peer in self._left:
                raise GroupError(self._left[peer]) if self._left[peer] else EOFError
            if waited > seconds:
                raise TimeoutError
            if waited > SPIN:
                time.sleep(min(waited / 8, self.pause))
            self.listen(peer, seconds - waited)

    def hear(self, peer: int, data: Part) -> None:
        """Note what a peer said."""
        message, due = unpack(data), self.heard[peer] + 1
        number = message.number
        if number == LEFT:
            self._left[peer] = quote(message.text)
        elif number == FAULT:
            self.note(quote(message.text))
        elif number == due:
            self.heard[peer] = due
            self._inbox[peer].append(message)
        else:
            self.note(f"rank {peer} is at message {number}, rank {self.rank} at {due}")

    def note(self, words: str) -> None:
        """Note that others, or what they sent, ended the group."""
        self.told = self.told or words

    def exchange(
        self, ranks: Ranks, text: str, parts: Sequence[Part], answer: Answer
    ) -> tuple[str, Sequence[Any]]:
        """Compare the ranks' calls; return how they differ ("": they agree), and this rank's parts.

        Each rank sends `text`, which describes its call, and `parts` to the first of `ranks`. That
        one answers with the differences, and with what answer([parts of each rank]) has for the
        rank. A text that begins with AGAIN is of a rank that went on without an answer, so a
        difference is an error.
        """
        root, what = ranks[0], text.partition(SEPARATOR)[0]
        if self.rank == root:
            own = Message(0, text, [memoryview(part) for part in parts])
            said = [own, *(self.receive(rank, what, self.timeout) for rank in ranks[1:])]
            words = disagreement(ranks, [message.text for message in said])
            if words and any(message.text.startswith(AGAIN) for message in said):
                raise GroupError(words)
            shares = answer([m.parts for m in said]) if answer and not words else [()] * len(ranks)
            for rank, share in zip(ranks[1:], shares[1:], strict=True):
                self.send(rank, words, share)
            return words, shares[0]
        self.send(root, text, parts)
        # The first rank waits for the others: its words say which of them is late.
        reply = self.receive(root, f"answer to {what}", self.timeout + GRACE)
        if reply.text and not reply.text.startswith(DISAGREE):
            raise GroupError(disagreement((root, self.rank), (reply.text, text)))
        return reply.text, reply.parts

    def news(self) -> str:
        """A fault of another rank, in words, as far as one is known without waiting."""
        self.listen(None, 0)
        return self.told or next(filter(None, self._left.values()), "")

    def end(self, words: str) -> None:
        """Note that and why the group cannot go on, and tell the others; from any thread."""
        if not self.has_ended:
            self.has_ended = True
            self.fault = self.fault or STOPPED  # before anything that may fail
            self.fault = quote(words)
            with contextlib.suppress(Exception):
                self.farewell(FAULT, self.fault)

    def close(self) -> None:
        """Tell the others that this rank leaves, with `last_words`, and let go of everything.

        After a fault nothing is told: that is the work of `end`.
        """
        with contextlib.suppress(Exception):
            if not self.fault:
                self.farewell(LEFT, self.last_words)
        self.release()
