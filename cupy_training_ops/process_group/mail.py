# SPDX-License-Identifier: MIT
"""Messages from one rank to one other: Send and Recv.

A label goes ahead of each message: its tag, and the shapes and types of its arrays. Labels come in
the order in which messages are sent. The receiver answers the first label of a kind, and every one
that comes with arrays; of later ones it is at most AHEAD behind, so that nothing waits.
"""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ..declare.schema import Spec
from ..dtypes import HostArray, dtype_name, to_dtype
from ..errors import GroupError, OpError
from .engine import GRACE, Engine
from .wire import Message, Part, printable

LABELS, ANSWERS = 16, 17  # channels
ANSWERED, UNANSWERED = "answered", "unanswered"
AHEAD = 64


class Label(NamedTuple):
    """What is said of a message."""

    where: str  # it travels by: cpu or cuda
    tag: int
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, where: str, tag: int, arrays: Sequence[HostArray | Spec]) -> Label:
        """Of arrays, or of what is known of them."""
        dtypes = tuple(dtype_name(a.dtype) for a in arrays)
        return cls(where, tag, dtypes, tuple(tuple(a.shape) for a in arrays))

    def __str__(self) -> str:
        pairs = itertools.zip_longest(self.dtypes, self.shapes, fillvalue="?")
        arrays = ", ".join(f"{dtype} {shape}" for dtype, shape in pairs)
        return f"tag {self.tag} on {self.where} with {arrays or 'no arrays'}"


def read_label(text: str) -> Label:
    """A label that came; GroupError where it is none."""
    try:
        where, tag, dtypes, shapes = json.loads(text)
        names = tuple(dtype_name(to_dtype(str(name))) for name in dtypes)
        extents = tuple(tuple(int(n) for n in shape) for shape in shapes)
        if len(names) != len(extents) or any(n < 0 for shape in extents for n in shape):
            raise ValueError
        return Label(str(where), int(tag), names, extents)
    except (OpError, TypeError, ValueError, RecursionError):
        raise GroupError("a message came whose label cannot be read") from None


class Mail:
    """The messages of one rank to and from the others."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._agreed: set[tuple[str, int, Label]] = set()
        self._unread: dict[int, deque[Label]] = {}  # what labels still to come will say

    def post(self, remote: int, label: Label, parts: Sequence[Part] = ()) -> str:
        """Send the label with the arrays' bytes; wait for the answer to a new one, or to bytes.

        The answer says in what the ranks differ.
        """
        key = ("to", remote, label)
        has_answer = bool(parts) or key not in self._agreed
        mode = ANSWERED if has_answer else UNANSWERED
        self._engine.send(remote, LABELS, f"{mode} {json.dumps(label)}", parts)
        if not has_answer:
            return ""
        what, seconds = f"answer to Send with {label}", self._engine.timeout + GRACE
        words = self._engine.receive(remote, ANSWERS, what, seconds).text
        if not words:
            self._agreed.add(key)
        return printable(words)

    def announced(self, remote: int) -> Label:
        """What the next message will be; it is not taken."""
        self._read_all(remote)
        return self._read(self._next(remote, keep=True))[1]

    def collect(self, remote: int, label: Label) -> tuple[str, list[memoryview]]:
        """In what the next message differs from this label, or its bytes.

        For a known label without bytes nothing waits.
        """
        key = ("from", remote, label)
        if label.where != "cpu" and key in self._agreed:
            self._unread.setdefault(remote, deque()).append(label)
            self._read_all(remote, AHEAD)
            return "", []
        self._read_all(remote)
        message = self._next(remote)
        mode, found = self._read(message)
        words = "" if found == label else self._words(remote, found, label)
        if mode == ANSWERED:
            self._engine.send(remote, ANSWERS, words)
        elif words:
            raise GroupError(words)
        if not words:
            self._agreed.add(key)
        return words, message.parts

    def _read_all(self, remote: int, but: int = 0) -> None:
        """Read the labels of messages that were taken without looking, but for the last few."""
        unread = self._unread.setdefault(remote, deque())
        while len(unread) > but:
            expected = unread.popleft()
            found = self._read(self._next(remote))[1]
            if found != expected:
                raise GroupError(self._words(remote, found, expected))

    def _next(self, remote: int, *, keep: bool = False) -> Message:
        return self._engine.receive(remote, LABELS, "Send", self._engine.timeout, keep=keep)

    def _read(self, message: Message) -> tuple[str, Label]:
        mode, _, text = message.text.partition(" ")
        return mode, read_label(text)

    def _words(self, remote: int, sent: Label, expected: Label) -> str:
        own = self._engine.rank
        return f"the ranks disagree: rank {remote} sends {sent}, rank {own} receives {expected}"
