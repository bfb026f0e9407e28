# SPDX-License-Identifier: MIT
"""What ranks say to each other: descriptions of calls, which have to agree, and bytes of arrays.

Of the ranks of a call the first has the others' messages, compares and answers. Of a message from
one rank to one other that is the receiver.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..declare.schema import Spec
from ..dtypes import HostArray, dtype_name
from ..errors import GroupError
from .engine import GRACE, Engine
from .members import Ranks
from .wire import Message, Part, printable

SEPARATOR = "; "
DISAGREE = "the ranks disagree: "
AGAIN = "once more "  # ahead of a description that the receiver need not answer
AHEAD = 64  # of these a receiver leaves at most so many for later

# From the arrays of each rank, as bytes, to what each rank gets.
Answer = Callable[[list[list[memoryview]]], Sequence[Sequence[Part]]]

# ---- descriptions --------------------------------------------------------------------------------


def described(call: str, arrays: Iterable[HostArray | Spec]) -> str:
    """A call and its arrays, in words that ranks compare."""
    found = list(arrays)
    shapes = (f"{dtype_name(a.dtype)} {tuple(a.shape)}" for a in found)
    return SEPARATOR.join([f"{call} of {len(found)} arrays", *shapes])


def letter(where: str, tag: int, arrays: Iterable[HostArray | Spec]) -> str:
    """A message of Send and Recv, which travels by cpu or cuda."""
    return described(f"Send and Recv with tag {tag} on {where}", arrays)


def shapes_in(text: str) -> tuple[tuple[int, ...], ...]:
    """The shapes in a description that came; GroupError where they cannot be read."""
    try:
        shapes = (part.partition(" ")[2] for part in text.split(SEPARATOR)[1:])
        return tuple(tuple(map(int, re.findall(r"\d+", shape))) for shape in shapes)
    except ValueError:  # of thousands of digits
        raise GroupError("a message came whose description cannot be read") from None


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


# ---- conversations -------------------------------------------------------------------------------


def exchange(
    engine: Engine, ranks: Ranks, text: str, parts: Sequence[Part], answer: Answer
) -> tuple[str, Sequence[Any]]:
    """In what the calls differ, or this rank's share of what the first rank answers to all."""
    root, what = ranks[0], text.partition(SEPARATOR)[0]
    if engine.rank == root:
        messages = [_next(engine, rank, what, engine.timeout) for rank in ranks[1:]]
        words, answers = _compared(ranks, text, parts, messages, answer)
        for rank, own in zip(ranks[1:], answers[1:], strict=True):
            engine.send(rank, words, own)
        return words, answers[0]
    engine.send(root, text, parts)
    # The first rank waits for the others: its words say which of them is late.
    found = _next(engine, root, f"answer to {what}", engine.timeout + GRACE)
    if found.text and not found.text.startswith(DISAGREE):
        raise GroupError(disagreement((root, engine.rank), (found.text, text)))
    return found.text, found.parts


def _compared(
    ranks: Ranks, text: str, parts: Sequence[Part], messages: Sequence[Message], answer: Answer
) -> tuple[str, Sequence[Sequence[Part]]]:
    """In what the calls differ, and what each rank gets."""
    words = disagreement(ranks, [text, *(m.text for m in messages)])
    if not words:
        return "", answer([[memoryview(p) for p in parts], *(m.parts for m in messages)])
    if any(m.text.startswith(AGAIN) for m in messages):  # whose senders went on
        raise GroupError(words)
    return words, [()] * len(ranks)


def repeat(engine: Engine, ranks: Ranks, text: str) -> None:
    """What agreed before, from the second to the first: nobody waits, it may be compared later."""
    receiver, sender = ranks
    if engine.rank == sender:
        engine.send(receiver, AGAIN + text)
    else:
        engine.unread[sender].append(AGAIN + text)
        _catch_up(engine, sender, AHEAD)


def announced(engine: Engine, sender: int) -> str:
    """The description that comes next, which is not taken."""
    return _next(engine, sender, "Send", engine.timeout, keep=True).text.removeprefix(AGAIN)


def _next(engine: Engine, peer: int, what: str, seconds: float, *, keep: bool = False) -> Message:
    """A rank's next message, behind those that were left for later."""
    _catch_up(engine, peer)
    return engine.receive(peer, what, seconds, keep=keep)


def _catch_up(engine: Engine, peer: int, but: int = 0) -> None:
    unread = engine.unread[peer]
    while len(unread) > but:
        texts = engine.receive(peer, "Send", engine.timeout).text, unread.popleft()
        if words := disagreement((peer, engine.rank), texts):
            raise GroupError(words)


def nothing(found: list[list[memoryview]]) -> list[list[Part]]:
    """The answer where descriptions alone are compared."""
    return [[] for _ in found]
