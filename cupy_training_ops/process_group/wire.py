# SPDX-License-Identifier: MIT
"""What travels over a connection: frames, and the text and arrays that a message is made of.

A frame is a header and a body; every length is checked before memory is taken for it.
"""

from __future__ import annotations

import enum
import math
import socket
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..declare.schema import Spec
from ..dtypes import HostArray

MAGIC = b"cupy-training-ops"
VERSION = 1
MAX_NOTE = 2**16  # bytes of a frame that carries no message
MAX_BODY = 2**44
MAX_PARTS = 2**17  # arrays of a message

_HEADER = struct.Struct("<BIIIQ")
_LENGTH = struct.Struct("<Q")

Part = bytes | memoryview


class WireError(Exception):
    """What came is no frame, or no greeting, of this version."""


class Kind(enum.IntEnum):
    """What a frame is for."""

    MESSAGE = 1
    PING = 2
    FAULT = 3  # the whole group cannot go on; the body says why
    LEFT = 4  # the source says no more; the body says why, where something went wrong there
    READY = 5  # all ranks have joined


class Frame(NamedTuple):
    """A frame as it was read."""

    kind: Kind
    source: int
    destination: int
    channel: int
    body: memoryview


class Message(NamedTuple):
    """What one rank says to another: a text, and the bytes of arrays."""

    text: str
    parts: list[memoryview]


def remaining(deadline: float) -> float:
    """Seconds until a moment of the monotonic clock; TimeoutError after it."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def read_exactly(sock: socket.socket, n: int, deadline: float = math.inf) -> memoryview:
    """So many bytes; EOFError where the connection ends before."""
    found = memoryview(bytearray(n))
    read = 0
    while read < n:
        if deadline < math.inf:
            sock.settimeout(remaining(deadline))
        got = sock.recv_into(found[read:])
        if not got:
            raise EOFError("its connection ended")
        read += got
    return found


def read_frame(sock: socket.socket) -> Frame:
    """The next frame."""
    number, source, destination, channel, length = _HEADER.unpack(read_exactly(sock, _HEADER.size))
    try:
        kind = Kind(number)
    except ValueError:
        raise WireError(f"it sent a frame of kind {number}") from None
    if length > (MAX_BODY if kind is Kind.MESSAGE else MAX_NOTE):
        raise WireError(f"it sent a frame of {length} bytes")
    return Frame(kind, source, destination, channel, read_exactly(sock, length))


def write_frame(
    sock: socket.socket,
    kind: Kind,
    source: int,
    destination: int = 0,
    channel: int = 0,
    body: Sequence[Part] = (),
) -> None:
    """A frame whose body is these parts, one behind the other."""
    length = sum(map(len, body))
    start = _HEADER.pack(kind, source, destination, channel, length)
    if length <= MAX_NOTE:
        sock.sendall(b"".join((start, *body)))
        return
    sock.sendall(start)
    for part in body:
        sock.sendall(part)


def packed(text: str, parts: Sequence[Part] = ()) -> list[Part]:
    """The body of a message."""
    words = text.encode()
    lengths = [len(words), len(parts), *map(len, parts)]
    return [b"".join(map(_LENGTH.pack, lengths)), words, *parts]


def unpacked(body: memoryview) -> Message:
    """The message of a body; WireError where its lengths are not those of its parts."""
    if len(body) < 2 * _LENGTH.size:
        raise WireError("it sent a message without lengths")
    n_words, n_parts = struct.unpack_from("<2Q", body)
    start = (2 + n_parts) * _LENGTH.size
    if n_parts > MAX_PARTS or start > len(body):
        raise WireError(f"it sent a message of {n_parts} parts")
    lengths = struct.unpack_from(f"<{n_parts}Q", body, 2 * _LENGTH.size)
    if start + n_words + sum(lengths) != len(body):
        raise WireError("it sent a message whose lengths do not add up")
    found = []
    place = start + n_words
    for length in lengths:
        found.append(body[place : place + length])
        place += length
    return Message(str(body[start : start + n_words], "utf-8", "replace"), found)


def as_bytes(array: HostArray) -> memoryview:
    """The bytes of a C-contiguous array, without a copy."""
    return memoryview(array.reshape(-1).view(np.uint8))


def as_array(part: memoryview, like: HostArray | Spec) -> HostArray:
    """Bytes as an array of the shape and dtype of another; WireError where they do not fit."""
    if len(part) != like.nbytes:
        raise WireError(f"it sent {len(part)} bytes, not {like.nbytes}")
    found: HostArray = np.frombuffer(part, np.uint8).view(like.dtype).reshape(like.shape)
    return found
