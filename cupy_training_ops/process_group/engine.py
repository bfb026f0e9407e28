# SPDX-License-Identifier: MIT
"""How a rank reaches the others: whole messages in order, and an end that all of them notice.

An Engine is one rank's end of the connections; subclasses carry bytes by sockets, MPI or PyTorch.
"""

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

GRACE = 1.0  # seconds beyond the timeout for a rank that waits for one that waits for others
SPIN = 1e-3  # seconds of waiting for a message without a sleep
STOPPED = "stopped in the middle of a call"
LEFT, FAULT = 0, 2**64 - 1  # a message's number where a rank leaves, or ends the group
MAX_WORDS = 1000  # characters of another rank's message that an error shows

_HEAD = struct.Struct("<QII")  # number; bytes of the text, how many parts

SEPARATOR = "; "  # in a description, of a call and its arrays
DISAGREE = "the ranks disagree: "
AGAIN = "once more "  # begins a description whose sender goes on without an answer

Ranks = tuple[int, ...]  # of a sub-group, in order
Part = bytes | bytearray | memoryview  # the bytes of an array
# From each rank's parts to the parts that each rank gets; None if only descriptions are compared.
Answer = Callable[[list[list[memoryview]]], Sequence[Sequence[Part]]] | None


class Message(NamedTuple):
    """The n-th message from one rank to another: a text and the bytes of arrays."""

    number: int  # from 1 on, or LEFT or FAULT
    text: str
    parts: list[memoryview]


def pack(number: int, text: str, parts: Sequence[Part] = ()) -> bytearray:
    """Return a message as bytes: _HEAD, bytes of each part as uint64, the text, the parts."""
    words = text.encode()
    head = _HEAD.pack(number, len(words), len(parts))
    return bytearray().join([head, struct.pack(f"<{len(parts)}Q", *map(len, parts)), words, *parts])


def unpack(data: Part) -> Message:
    """Return the message whose bytes a peer sent (data); one with number FAULT if they are none."""
    view = memoryview(data)
    with contextlib.suppress(struct.error):
        number, n_text, n = _HEAD.unpack_from(view)
        lengths = struct.unpack_from(f"<{n}Q", view, _HEAD.size)
        # ends[i]: where the i-th part begins; the text ends at ends[0].
        ends = list(itertools.accumulate(lengths, initial=_HEAD.size + 8 * n + n_text))
        if ends[-1] == len(view):
            text = str(view[ends[0] - n_text : ends[0]], "utf-8", "replace")
            return Message(number, text, [view[a:b] for a, b in itertools.pairwise(ends)])
    return Message(FAULT, f"a message came whose {len(view)} bytes cannot be read", [])


def quote(text: str) -> str:
    """Return MAX_WORDS characters of a text that another rank sent, control characters escaped."""
    return printable(text[:MAX_WORDS])


def disagreement(ranks: Sequence[int], texts: Sequence[str]) -> str:
    """Return a message that names a rank whose call differs from the first one's; "" if none does.

    texts: the description of each rank's call: the call, then its arrays, joined by SEPARATOR.
    """
    for rank, text in zip(ranks, texts, strict=True):
        if text != texts[0]:
            first, other = map(quote, _difference(texts[0], text))
            return f"{DISAGREE}rank {ranks[0]} calls {first}, rank {rank} calls {other}"
    return ""


def _difference(mine: str, theirs: str) -> tuple[str, str]:
    """Return of each description the call and the first array that differs, or the call alone:
    "AllReduce of 2 arrays, number 0 float32 (3,)"."""
    a, b = mine.split(SEPARATOR), theirs.split(SEPARATOR)
    place = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
    if place == 0:
        return a[0], b[0]
    return f"{a[0]}, number {place - 1} {a[place]}", f"{b[0]}, number {place - 1} {b[place]}"


class Engine:
    """One rank's messages to and from the others; this class is for a rank alone.

    Subclasses carry bytes by `put`, `listen`, `farewell`, `release` and `abandon`. Messages from
    one rank to another are numbered from 1 on; a number out of order ends the group. Messages that
    have come can be received after their sender left. The caller of any method but `end` holds
    `lock`.
    """

    name: ClassVar[str] = "alone"  # in a group's repr
    pause: ClassVar[float] = 0.0  # longest sleep between calls of a `listen` that does not wait

    def __init__(self, rank: int, size: int, timeout: float) -> None:
        """rank: this rank, of `size` ranks. timeout: seconds to wait for another rank."""
        self.rank, self.size, self.timeout = rank, size, timeout
        self.local_rank = rank  # number of this rank on its node
        self.local_size: int | None = None  # ranks on the node; None if unknown
        self.others = [peer for peer in range(size) if peer != rank]
        self.fault = ""  # why the group cannot go on, set by `end`; "" while it can
        self.told = ""  # why others ended the group, by their messages or connections
        self.last_words = ""  # what went wrong on this rank, which `close` tells the others
        self.lock = threading.Lock()
        self.sent, self.heard = Counter[int](), Counter[int]()  # number of messages, by peer
        self._inbox: defaultdict[int, deque[Message]] = defaultdict(deque)  # by peer
        self._left: dict[int, str] = {}  # last words of ranks that left, "" if all was well
        self.has_ended = False  # True once `end` has told the others

    def put(self, peer: int, data: bytearray, seconds: float) -> None:
        """Send `data`, the bytes of a message, to rank `peer`.

        Raises TimeoutError after `seconds`, EOFError if the peer has left, GroupError if the group
        has ended.
        """
        raise NotImplementedError

    def listen(self, peer: int | None, seconds: float) -> None:
        """Pass messages that have come to `hear`: those of `peer` at least, if it is not None.

        An engine may wait up to `seconds` for one.
        """

    def farewell(self, number: int, words: str) -> None:
        """Try to send a last message to all others without waiting; number: LEFT or FAULT."""

    def release(self) -> None:
        """Close connections."""

    def abandon(self) -> None:
        """Close this process' copies of connections in a forked child; send nothing."""
        self.release()

    def send(self, peer: int, text: str, parts: Sequence[Part] = ()) -> None:
        """Send a text and bytes to rank `peer`; GroupError if it does not take them in time."""
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
        """Return the next message of rank `peer`; raise GroupError if none comes within `seconds`.

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
        """Listen to a peer until `is_done()` is true.

        Raises GroupError once the group ends, EOFError if the peer leaves, TimeoutError after
        `seconds`.
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
                time.sleep(min(waited / 8, self.pause))  # longer, the longer it waited
            self.listen(peer, seconds - waited)

    def hear(self, peer: int, data: Part) -> None:
        """Unpack `data`, a peer's message: into its inbox, or to note that it left or that the
        group ended."""
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
        """Compare the ranks' calls; return (how they differ, "" if they agree; this rank's share).

        Each rank sends `text`, which describes its call, and `parts` to the first of `ranks`. That
        one replies with the difference and the rank's share: answer([parts of each rank])[its index
        in ranks]. A text that begins with AGAIN is of a rank that went on without an answer, so a
        difference raises GroupError.
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
        """Return why another rank ended the group, without waiting; "" if none has."""
        self.listen(None, 0)
        return self.told or next(filter(None, self._left.values()), "")

    def end(self, words: str) -> None:
        """Note that the group cannot go on, and tell the others, from any thread; words: why."""
        if not self.has_ended:
            self.has_ended = True
            self.fault = self.fault or STOPPED  # before anything that may fail
            self.fault = quote(words)
            with contextlib.suppress(Exception):
                self.farewell(FAULT, self.fault)

    def close(self) -> None:
        """Tell the others that this rank leaves, with `last_words`, and close connections.

        After a fault nothing is sent: `end` has told them.
        """
        with contextlib.suppress(Exception):
            if not self.fault:
                self.farewell(LEFT, self.last_words)
        self.release()
