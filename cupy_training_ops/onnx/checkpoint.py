# SPDX-License-Identifier: MIT
"""ONNX Runtime's training checkpoint: parameters, states of optimizers, properties.

It is a flatbuffer, of which each offset is checked. A buffer may point to the same bytes from many
places, so that it says more than it holds: `Buffer` counts the bytes that were read and refuses
more than twice its size.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from .. import limits
from ..dtypes import HostArray, to_dtype
from ..errors import ArgumentError, DtypeError, OpError, cut
from .models import MOST_BYTES, from_bytes, read_bounded, read_part

T = TypeVar("T")
IDENTIFIER = b"ODTC"
_SLACK = 1 << 16  # bytes beyond twice the size, for small buffers that share names
_INSIDE = -1  # the external offset of a tensor whose bytes are in the checkpoint


class Group(NamedTuple):
    """An optimizer's state for a group of parameters; `moments` by parameter, then by name."""

    name: str
    step: int
    initial_lr: float
    moments: Mapping[str, Mapping[str, HostArray]]


@dataclass(frozen=True)
class Checkpoint:
    """The arrays, groups and properties of a checkpoint."""

    trained: Mapping[str, HostArray]
    frozen: Mapping[str, HostArray]
    groups: tuple[Group, ...] = ()
    properties: Mapping[str, int | float | str] = field(default_factory=dict)


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a file, its tensors in the one beside it if they are there."""
    if path.is_dir():
        words = "a folder, as older releases of onnxruntime-training wrote, which are not read here"
        raise ArgumentError(f"{path}: expected a checkpoint's file, got {words}")
    buffer = Buffer(read_bounded(path, MOST_BYTES), str(path))
    root = buffer.root(IDENTIFIER)
    reader = _Reader(buffer, path.with_name(path.name + ".data"))
    module = root.table(1)
    if module is None:
        buffer.refuse("it has no parameters")
    if module.number(2, "?", False):
        raise ArgumentError(f"{path}: a nominal checkpoint, which has names without values")
    return Checkpoint(
        reader.tensors(module, 0),
        reader.tensors(module, 1),
        tuple(root.tables(2, reader.group)),
        _properties(root.table(3)),
    )


class _Reader:
    """Reads tensors; those of the other file are together no larger than it is."""

    def __init__(self, buffer: Buffer, external: Path) -> None:
        self._buffer, self._external = buffer, external
        self._left: int | None = None

    def tensors(self, table: Table, field: int) -> dict[str, HostArray]:
        """Arrays by name."""
        arrays: dict[str, HostArray] = {}
        for name, array in table.tables(field, self._tensor):
            if name in arrays:
                self._buffer.refuse(f"{cut(name)!r} is there twice")
            arrays[name] = array
        return arrays

    def group(self, table: Table) -> Group:
        """A group of an optimizer's."""
        states = table.tables(3, lambda item: (item.text(0), self.tensors(item, 1)))
        step, rate = table.number(1, "q"), table.number(2, "f", 0.0)
        return Group(table.text(0), int(step), float(rate), dict(states))

    def _tensor(self, table: Table) -> tuple[str, HostArray]:
        name = table.text(0)
        dims = struct.iter_unpack("<q", table.vector(2, 8))
        shape = tuple(extent for (extent,) in dims)
        try:
            dtype = to_dtype(int(table.number(3, "i")))
            limits.refuse(limits.of_shape(shape))
            nbytes = math.prod(shape) * dtype.itemsize
            offset = int(table.number(6, "q", _INSIDE))
            inside = offset == _INSIDE
            data = table.vector(4, 1) if inside else self._outside(offset, nbytes)
            return name, from_bytes(data, dtype, shape)
        except DtypeError:
            self._buffer.refuse(f"{cut(name)!r}: elements of a type that is not computed here")
        except OpError as error:
            self._buffer.refuse(f"{cut(name)!r}: {error}")

    def _outside(self, offset: int, nbytes: int) -> bytes:
        if self._left is None:
            path = self._external
            self._left = path.stat().st_size if path.is_file() else 0
        self._left -= nbytes
        if self._left < 0:
            raise ArgumentError(f"{self._external.name!r} beside it is not there, or too short")
        return read_part(self._external, offset, nbytes)


def _properties(table: Table | None) -> dict[str, int | float | str]:
    if table is None:
        return {}
    properties: dict[str, int | float | str] = {}
    properties.update(table.tables(0, lambda item: (item.text(0), int(item.number(1, "q")))))
    properties.update(table.tables(1, lambda item: (item.text(0), float(item.number(1, "f", 0.0)))))
    properties.update(table.tables(2, lambda item: (item.text(0), item.text(1))))
    return properties


# ---- flatbuffers ---------------------------------------------------------------------------------


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
        place: int = at + self.number("I", at)
        return place

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
        offset = self.buffer.number("H", self._fields + at)
        return self._at + offset if offset else None

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
        """The results of a function on each table of a vector."""
        at = self._place(field)
        if at is None:
            return []
        start = self.buffer.offset(at)
        n = self.buffer.number("I", start)
        self.buffer.bytes(start + 4, 4 * n)  # they are there
        places = range(start + 4, start + 4 + 4 * n, 4)
        return [read(Table(self.buffer, self.buffer.offset(place))) for place in places]
