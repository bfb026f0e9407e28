# SPDX-License-Identifier: MIT
"""What messages are made of: a number, a text and the bytes of arrays; peers' lengths and texts are
looked at before they are used."""

from __future__ import annotations

import contextlib
import itertools
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..declare.schema import Spec
from ..dtypes import HostArray
from ..errors import GroupError

MAX_WORDS = 1000  # characters of what another rank says, in a message

_HEAD = struct.Struct("<QII")  # number; bytes of the text, how many parts

Part = bytes | bytearray | memoryview


class Message(NamedTuple):
    """What one rank says to another, as the n-th between them."""

    number: int
    text: str
    parts: list[memoryview]


def packed(number: int, text: str, parts: Sequence[Part] = ()) -> bytearray:
    """A message as bytes: a head, the lengths of the parts, the text, the parts."""
    words = text.encode()
    head = _HEAD.pack(number, len(words), len(parts))
    return bytearray().join([head, struct.pack(f"<{len(parts)}Q", *map(len, parts)), words, *parts])


def unpacked(data: Part) -> Message:
    """What a peer sent; GroupError where it cannot be."""
    view = memoryview(data)
    with contextlib.suppress(struct.error):
        number, n_text, n = _HEAD.unpack_from(view)
        lengths = struct.unpack_from(f"<{n}Q", view, _HEAD.size)
        start = _HEAD.size + 8 * n
        ends = list(itertools.accumulate(lengths, initial=start + n_text))
        if ends[-1] == len(view):
            text = str(view[start : ends[0]], "utf-8", "replace")
            return Message(number, text, [view[a:b] for a, b in itertools.pairwise(ends)])
    raise GroupError(f"a message came whose {len(view)} bytes cannot be read")


def printable(text: str) -> str:
    """The beginning of a text that another rank sent, without what would steer a terminal."""
    start = text[:MAX_WORDS]
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in start)


def as_bytes(array: HostArray) -> memoryview:
    """The bytes of a C-contiguous array, without a copy."""
    return memoryview(array.reshape(-1).view(np.uint8))


def as_arrays(parts: Sequence[Part], like: Sequence[HostArray | Spec]) -> list[HostArray]:
    """Bytes as arrays of the shapes and dtypes of others; GroupError where they do not fit."""
    if len(parts) != len(like):
        raise GroupError(f"a message came with {len(parts)} arrays, not {len(like)}")
    return list(map(_as_array, parts, like))


def _as_array(part: Part, like: HostArray | Spec) -> HostArray:
    if len(part) != like.nbytes:
        raise GroupError(f"a message came with {len(part)} bytes, not {like.nbytes}")
    found: HostArray = np.frombuffer(part, np.uint8).view(like.dtype).reshape(like.shape)
    return found if found.flags.aligned else found.copy()
