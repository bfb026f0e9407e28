# SPDX-License-Identifier: MIT
"""What ranks exchange by messages: descriptions of calls that have to agree, and NumPy arrays.

In a sub-group everything goes through its first rank, which compares and answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..declare.schema import Spec
from ..dtypes import HostArray, dtype_name
from .engine import GRACE, Engine
from .members import Members
from .wire import Part, printable

SEPARATOR = "; "

# From the arrays of each rank, as bytes, to what each rank gets.
Answer = Callable[[list[list[memoryview]]], Sequence[Sequence[Part]]]


def described(call: str, arrays: Iterable[HostArray | Spec]) -> str:
    """A call and its arrays, in words that ranks compare."""
    found = list(arrays)
    shapes = (f"{dtype_name(a.dtype)} {tuple(a.shape)}" for a in found)
    return SEPARATOR.join([f"{call} of {len(found)} arrays", *shapes])


def difference(mine: str, theirs: str) -> tuple[str, str]:
    """Of two descriptions the calls, and the first arrays in which they differ."""
    a, b = mine.split(SEPARATOR), theirs.split(SEPARATOR)
    places = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    place = next(places, 0)
    if place == 0:
        return a[0], b[0]
    return tuple(f"{parts[0]}, number {place - 1} {parts[place]}" for parts in (a, b))  # type: ignore[return-value]


def disagreement(ranks: Sequence[int], texts: Sequence[str]) -> str:
    """What a rank said that is not what the first one did; empty where all agree."""
    for rank, text in zip(ranks, texts, strict=True):
        if text != texts[0]:
            first, other = map(printable, difference(texts[0], text))
            return f"the ranks disagree: rank {ranks[0]} calls {first}, rank {rank} calls {other}"
    return ""


def exchange(
    engine: Engine, members: Members, text: str, parts: Sequence[Part], answer: Answer
) -> tuple[str, Sequence[Any]]:
    """In what the calls differ, or this rank's share of what the first rank answers to all."""
    if engine.rank == members.root:
        return _answered(engine, members, text, parts, answer)
    engine.send(members.root, members.channel, text, parts)
    what = f"answer to {text.partition(SEPARATOR)[0]}"
    # The first rank waits for the others: its words say which of them is late.
    found = engine.receive(members.root, members.channel, what, engine.timeout + GRACE)
    return found.text, found.parts


def _answered(
    engine: Engine, members: Members, text: str, parts: Sequence[Part], answer: Answer
) -> tuple[str, Sequence[object]]:
    """The first rank's part."""
    others = members.ranks[1:]
    what = text.partition(SEPARATOR)[0]
    messages = [engine.receive(rank, members.channel, what, engine.timeout) for rank in others]
    words = disagreement(members.ranks, [text, *(m.text for m in messages)])
    if words:
        answers: Sequence[Sequence[Part]] = [()] * members.size
    else:
        answers = answer([[memoryview(p) for p in parts], *(m.parts for m in messages)])
    for rank, own in zip(others, answers[1:], strict=True):
        engine.send(rank, members.channel, words, own)
    return words, answers[0]


def nothing(found: list[list[memoryview]]) -> list[list[Part]]:
    """The answer where descriptions alone are compared."""
    return [[] for _ in found]
