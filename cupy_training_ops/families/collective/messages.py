# SPDX-License-Identifier: MIT
"""Messages about arrays: descriptions in words, which ranks compare, and the bytes of NumPy's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from ...declare.schema import Spec
from ...dtypes import HostArray, dtype_name
from ...errors import GroupError
from ...process_group import ProcessGroup
from ...process_group.engine import AGAIN, SEPARATOR, Part, Ranks, disagreement


def description(call: str, arrays: Iterable[HostArray | Spec]) -> str:
    """Describe a call and its arrays (number, dtypes, shapes) in a text that ranks compare."""
    listed = list(arrays)
    shapes = (f"{dtype_name(a.dtype)} {tuple(a.shape)}" for a in listed)
    return SEPARATOR.join([f"{call} of {len(listed)} arrays", *shapes])


def transfer_description(where: str, tag: int, arrays: Iterable[HostArray | Spec]) -> str:
    """Describe a Send and its Recv; both ranks compare the text. where: "cpu" or "cuda"."""
    return description(f"Send and Recv with tag {tag} on {where}", arrays)


def shapes_in(text: str) -> tuple[tuple[int, ...], ...]:
    """Read the shapes from a received description; GroupError if it is malformed."""
    try:
        shapes = (part.partition(" ")[2] for part in text.split(SEPARATOR)[1:])
        return tuple(tuple(map(int, re.findall(r"\d+", shape))) for shape in shapes)
    except ValueError:  # of thousands of digits
        raise GroupError("a message came whose description cannot be read") from None


def agree_each_time(group: ProcessGroup, op: str, ranks: Ranks, text: str) -> None:
    """Compare the descriptions of a Send and its Recv; raise GroupError on both if they differ.

    group: that both are in. op: the operator's name. ranks: (receiver, sender). text: this rank's
    description. Each kind of call is compared once by an exchange; after that the sender only sends
    its text ahead, and the receiver compares.
    """
    receiver, sender = ranks
    if group.agree(op, ranks, text):
        return
    with group.call(op) as engine:
        if engine.rank == sender:
            engine.send(receiver, AGAIN + text)
            return
        said = engine.receive(sender, "Send", engine.timeout).text
        if words := disagreement((sender, receiver), (said, AGAIN + text)):
            raise GroupError(words)


def next_description(group: ProcessGroup, op: str, sender: int) -> str:
    """Return the description of the next message of rank `sender`, which stays in the inbox."""
    with group.call(op) as engine:
        said = engine.receive(sender, "Send", engine.timeout, keep=True)
    return said.text.removeprefix(AGAIN)


def as_bytes(array: HostArray) -> memoryview:
    """Return the bytes of a C-contiguous array, without a copy."""
    return memoryview(array.reshape(-1).view(np.uint8))


def as_arrays(parts: Sequence[Part], like: Sequence[HostArray | Spec]) -> list[HostArray]:
    """Return bytes as arrays of the shapes and dtypes of `like`; GroupError if they do not fit."""
    if len(parts) != len(like):
        raise GroupError(f"a message came with {len(parts)} arrays, not {len(like)}")
    return list(map(_as_array, parts, like))


def _as_array(part: Part, like: HostArray | Spec) -> HostArray:
    """Return one array of `as_arrays`: a view of the bytes, or a copy if they are not aligned."""
    if len(part) != like.nbytes:
        raise GroupError(f"a message came with {len(part)} bytes, not {like.nbytes}")
    array: HostArray = np.frombuffer(part, np.uint8).view(like.dtype).reshape(like.shape)
    return array if array.flags.aligned else array.copy()
