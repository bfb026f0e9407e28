# SPDX-License-Identifier: MIT
"""What messages are made of: a number, a text and the bytes of arrays; peers' lengths and texts are
looked at before they are used."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..declare.schema import Spec
from ..dtypes import HostArray
from ..errors import GroupError

MAX_HEAD = 2**26  # bytes: room for the description of a million arrays
MAX_PART = 2**44
MAX_WORDS = 1000  # characters of what another rank says, in a message

_HEAD = struct.Struct("<QI")

Part = bytes | memoryview


class Message(NamedTuple):
    """What one rank says to another, as the n-th between them on a channel."""

    number: int
    text: str
    parts: list[memoryview]


def head(number: int, text: str, parts: Sequence[Part]) -> bytes:
    """What goes ahead of the parts: the number, their lengths, the text."""
    lengths = struct.pack(f"<{len(parts)}Q", *map(len, parts))
    return _HEAD.pack(number, len(parts)) + lengths + text.encode()


def read_head(data: Part) -> tuple[int, tuple[int, ...], str]:
    """Number, lengths and text; GroupError where they cannot be."""
    start = _HEAD.size
    if len(data) >= start:
        number, n = _HEAD.unpack_from(data)
        if start + 8 * n <= len(data):
            lengths = struct.unpack_from(f"<{n}Q", data, start)
            if max(lengths, default=0) <= MAX_PART:
                return number, lengths, str(data[start + 8 * n :], "utf-8", "replace")
    raise GroupError(f"a message came whose head of {len(data)} bytes cannot be read")


def printable(text: str) -> str:
    """The beginning of a text that another rank sent, without what would steer a terminal."""
    start = text[:MAX_WORDS]
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in start)


def as_bytes(array: HostArray) -> memoryview:
    """The bytes of a C-contiguous array, without a copy."""
    return memoryview(array.reshape(-1).view(np.uint8))


def as_array(part: memoryview, like: HostArray | Spec) -> HostArray:
    """Bytes as an array of the shape and dtype of another; GroupError where they do not fit."""
    if len(part) != like.nbytes:
        raise GroupError(f"a message came with {len(part)} bytes, not {like.nbytes}")
    found: HostArray = np.frombuffer(part, np.uint8).view(like.dtype).reshape(like.shape)
    return found


def as_arrays(parts: Sequence[memoryview], like: Sequence[HostArray | Spec]) -> list[HostArray]:
    """The parts of a message as arrays; GroupError where they do not fit."""
    if len(parts) != len(like):
        raise GroupError(f"a message came with {len(parts)} arrays, not {len(like)}")
    return list(map(as_array, parts, like))
