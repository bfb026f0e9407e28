# SPDX-License-Identifier: MIT
"""What ranks say to each other: descriptions of calls, which have to agree, and bytes of arrays.

Of the ranks of a call the first has the others' messages, compares and answers; of a message from
one rank to one other that is the receiver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import GroupError
from .engine import GRACE, Engine, Message, Part, Ranks, printable

SEPARATOR = "; "  # in a description, of a call and its arrays
DISAGREE = "the ranks disagree: "
AGAIN = "once more "  # ahead of a description that the receiver need not answer

# From the arrays of each rank, as bytes, to what each rank gets.
Answer = Callable[[list[list[memoryview]]], Sequence[Sequence[Part]]]


def disagreement(ranks: Sequence[int], texts: Sequence[str]) -> str:
    """What a rank said that is not what the first one did; empty where all agree."""
    for rank, text in zip(ranks, texts, strict=True):
        if text != texts[0]:
            first, other = map(printable, _difference(texts[0], text))
            return f"{DISAGREE}rank {ranks[0]} calls {first}, rank {rank} calls {other}"
    return ""


def _difference(mine: str, theirs: str) -> tuple[str, str]:
    """Of two descriptions the calls, and the first arrays in which they differ."""
    a, b = mine.split(SEPARATOR), theirs.split(SEPARATOR)
    place = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
    if place == 0:
        return a[0], b[0]
    return f"{a[0]}, number {place - 1} {a[place]}", f"{b[0]}, number {place - 1} {b[place]}"


def exchange(
    engine: Engine, ranks: Ranks, text: str, parts: Sequence[Part], answer: Answer
) -> tuple[str, Sequence[Any]]:
    """In what the calls differ, or this rank's share of what the first rank answers to all."""
    root, what = ranks[0], text.partition(SEPARATOR)[0]
    if engine.rank == root:
        own = Message(0, text, [memoryview(part) for part in parts])
        said = [own, *(engine.receive(rank, what, engine.timeout) for rank in ranks[1:])]
        words = disagreement(ranks, [message.text for message in said])
        if words and any(message.text.startswith(AGAIN) for message in said):  # who went on
            raise GroupError(words)
        shares = [()] * len(ranks) if words else answer([message.parts for message in said])
        for rank, share in zip(ranks[1:], shares[1:], strict=True):
            engine.send(rank, words, share)
        return words, shares[0]
    engine.send(root, text, parts)
    # The first rank waits for the others: its words say which of them is late.
    found = engine.receive(root, f"answer to {what}", engine.timeout + GRACE)
    if found.text and not found.text.startswith(DISAGREE):
        raise GroupError(disagreement((root, engine.rank), (found.text, text)))
    return found.text, found.parts


def repeat(engine: Engine, ranks: Ranks, text: str) -> None:
    """What agreed before, from the second to the first, which compares it; nobody is answered."""
    receiver, sender = ranks
    if engine.rank == sender:
        engine.send(receiver, AGAIN + text)
        return
    said = engine.receive(sender, "Send", engine.timeout).text
    if words := disagreement((sender, receiver), (said, AGAIN + text)):
        raise GroupError(words)


def nothing(found: list[list[memoryview]]) -> list[list[Part]]:
    """The answer where descriptions alone are compared."""
    return [[] for _ in found]
