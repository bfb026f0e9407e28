# SPDX-License-Identifier: MIT
"""A bounded reader of flatbuffers: each offset is checked, and no bytes are read more than twice.

A buffer may point to the same bytes from many places, so that what it says is larger than itself;
`Buffer` counts what was read and refuses more than twice its size.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from ..errors import ArgumentError

T = TypeVar("T")
_SLACK = 1 << 16  # bytes beyond twice the size, for small buffers that share names


class Buffer:
    """The bytes of a flatbuffer, and how many of them may still be read."""

    def __init__(self, data: bytes, name: str) -> None:
        self.data, self.name = data, name
        self._left = 2 * len(data) + _SLACK

    def root(self, identifier: bytes) -> Table:
        """The root table of a file of this kind."""
        if self.bytes(4, 4) != identifier:
            self.refuse(f"expected the identifier {identifier!r}")
        return Table(self, self.offset(0))

    def number(self, kind: str, at: int) -> Any:
        """A little-endian number, `kind` as in `struct`."""
        return struct.unpack(f"<{kind}", self.bytes(at, struct.calcsize(f"<{kind}")))[0]

    def offset(self, at: int) -> int:
        """Where the offset at a place leads to."""
        found: int = at + self.number("I", at)
        return found

    def bytes(self, at: int, n: int) -> bytes:
        """So many bytes at a place."""
        if at < 0 or n < 0 or at + n > len(self.data):
            self.refuse("it points outside itself, as a file does that was cut off")
        self._left -= n
        if self._left < 0:
            self.refuse("it says more than it holds")
        return self.data[at : at + n]

    def refuse(self, what: str) -> NoReturn:
        """Raise ArgumentError."""
        raise ArgumentError(f"{self.name}: no checkpoint, or a damaged one: {what}")


class Table:
    """A table of a buffer, whose fields are asked for by their number."""

    def __init__(self, buffer: Buffer, at: int) -> None:
        self.buffer, self._at = buffer, at
        self._fields = at - buffer.number("i", at)
        self._size: int = buffer.number("H", self._fields)

    def _place(self, field: int) -> int | None:
        """Where a field is; None where the table has none of that number."""
        at = 4 + 2 * field
        if at + 2 > self._size:
            return None
        found = self.buffer.number("H", self._fields + at)
        return self._at + found if found else None

    def number(self, field: int, kind: str, default: Any = 0) -> Any:
        """A number, `kind` as in `struct`."""
        at = self._place(field)
        return default if at is None else self.buffer.number(kind, at)

    def text(self, field: int) -> str:
        """A string; the empty one where there is none."""
        return self.vector(field, 1).decode("utf-8", "backslashreplace")

    def table(self, field: int) -> Table | None:
        """A table; None where there is none."""
        at = self._place(field)
        return None if at is None else Table(self.buffer, self.buffer.offset(at))

    def vector(self, field: int, itemsize: int) -> bytes:
        """The bytes of a vector of numbers."""
        at = self._place(field)
        if at is None:
            return b""
        start = self.buffer.offset(at)
        return self.buffer.bytes(start + 4, itemsize * self.buffer.number("I", start))

    def tables(self, field: int, read: Callable[[Table], T]) -> list[T]:
        """What a function gives of each table of a vector."""
        at = self._place(field)
        if at is None:
            return []
        start = self.buffer.offset(at)
        n = self.buffer.number("I", start)
        self.buffer.bytes(start + 4, 4 * n)  # they are there
        places = range(start + 4, start + 4 + 4 * n, 4)
        return [read(Table(self.buffer, self.buffer.offset(place))) for place in places]
