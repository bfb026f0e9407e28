# SPDX-License-Identifier: MIT
"""ONNX Runtime's training checkpoint: parameters, states of optimizers, properties.

It is a flatbuffer, of which each offset is checked. A buffer may point to the same bytes from many
places, so that it says more than it holds: `Buffer` counts the bytes that were read and refuses
more than twice its size.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar

from .. import limits
from ..dtypes import HostArray, to_dtype
from ..errors import ArgumentError, DtypeError, OpError, cut, refuse, shown
from .models import MOST_BYTES, from_bytes, onnx_package, read_bounded, read_part

T = TypeVar("T")
Field = tuple[Any, ...] | None  # of a table that _Writer writes: (kind, value), or None: left out
FILES = ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint")
IDENTIFIER = b"ODTC"
_SLACK = 1 << 16  # bytes beyond twice the size, for small buffers that share names
_INSIDE = -1  # the external offset of a tensor whose bytes are in the checkpoint


class Group(NamedTuple):
    """An optimizer's state for a group of parameters."""

    name: str
    step: int  # how many steps were made
    initial_lr: float
    moments: Mapping[str, Mapping[str, HostArray]]  # moments["weight"]["momentum0"] is an array


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint: trained and frozen parameters by name, and more.

    groups: states of the optimizer. properties: numbers and texts of the user's by name.
    """

    trained: Mapping[str, HostArray]
    frozen: Mapping[str, HostArray]
    groups: tuple[Group, ...] = ()
    properties: Mapping[str, int | float | str] = field(default_factory=dict)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint's file; tensors marked as external are read from `<path>.data`."""
    if path.is_dir():
        words = "a folder, as older releases of onnxruntime-training wrote, which are not read here"
        raise ArgumentError(f"{path}: expected a checkpoint's file, got {words}")
    buffer = Buffer(read_bounded(path, MOST_BYTES), str(path))
    root = buffer.root(IDENTIFIER)
    reader = _Reader(buffer, _beside(path))
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


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".data")


class _Reader:
    """Reads arrays and groups from tables of a buffer.

    external: the file of tensors whose bytes are not in the buffer; together they may have no more
    bytes than it.
    """

    def __init__(self, buffer: Buffer, external: Path) -> None:
        self._buffer, self._external = buffer, external
        self._read_nbytes = 0  # of `external`

    def tensors(self, table: Table, field: int) -> dict[str, HostArray]:
        """Return arrays by name, from a field that is a vector of tensors' tables."""
        arrays: dict[str, HostArray] = {}
        for name, array in table.tables(field, self._tensor):
            if name in arrays:
                self._buffer.refuse(f"{cut(name)!r} is there twice")
            arrays[name] = array
        return arrays

    def group(self, table: Table) -> Group:
        """Return an optimizer's group from its table."""
        states = table.tables(3, lambda item: (item.text(0), self.tensors(item, 1)))
        step, rate = table.number(1, "q"), table.number(2, "f", 0.0)
        return Group(table.text(0), int(step), float(rate), dict(states))

    def _tensor(self, table: Table) -> tuple[str, HostArray]:
        """Return a tensor's name and array.

        Fields: 0 name, 2 extents (int64), 3 ONNX's element type, 4 bytes, 6 offset in `external`.
        """
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
        """Return `nbytes` bytes of the external file from byte `offset` on.

        Refused if all tensors together take more bytes than it has.
        """
        path = self._external
        size = path.stat().st_size if path.is_file() else 0
        if nbytes > size:
            raise ArgumentError(f"{path.name!r} beside it is not there, or too short")
        data = read_part(path, offset, nbytes)
        self._read_nbytes += nbytes
        if self._read_nbytes > size:
            raise ArgumentError(f"tensors have bytes of {path.name!r} in common")
        return data


def _properties(table: Table | None) -> dict[str, int | float | str]:
    """Return properties by name, from a table whose fields 0, 1, 2 are integers, floats, texts.

    Each field is a vector of tables with field 0 the name and field 1 the value.
    """
    if table is None:
        return {}
    properties: dict[str, int | float | str] = {}
    properties.update(table.tables(0, lambda item: (item.text(0), int(item.number(1, "q")))))
    properties.update(table.tables(1, lambda item: (item.text(0), float(item.number(1, "f", 0.0)))))
    properties.update(table.tables(2, lambda item: (item.text(0), item.text(1))))
    return properties


# ---- flatbuffers ---------------------------------------------------------------------------------


class Buffer:
    """The bytes of a flatbuffer; name: of its file, for messages. All positions are in bytes."""

    def __init__(self, data: bytes, name: str) -> None:
        self.data, self.name = data, name
        self._left = 2 * len(data) + _SLACK  # bytes that may still be read

    def root(self, identifier: bytes) -> Table:
        """Return the root table; the four bytes `identifier` have to stand at byte 4."""
        if self.bytes(4, 4) != identifier:
            self.refuse(f"expected the identifier {identifier!r}")
        return Table(self, self.offset(0))

    def number(self, kind: str, at: int) -> Any:
        """Return the little-endian number at byte `at`, `kind` as in `struct`."""
        return struct.unpack(f"<{kind}", self.bytes(at, struct.calcsize(f"<{kind}")))[0]

    def offset(self, at: int) -> int:
        """Return the position that the offset at byte `at` points to: it is relative to itself."""
        place: int = at + self.number("I", at)
        return place

    def bytes(self, at: int, n: int) -> bytes:
        """Return n bytes from byte `at` on; refuse what is outside, and more than may be read."""
        if at < 0 or n < 0 or at + n > len(self.data):
            self.refuse("it points outside itself, as a file does that was cut off")
        self._left -= n
        if self._left < 0:
            self.refuse("it says more than it holds")
        return self.data[at : at + n]

    def refuse(self, what: str) -> NoReturn:
        """Raise ArgumentError with the file's name; what: the reason."""
        raise ArgumentError(f"{self.name}: no checkpoint, or a damaged one: {what}")


class Table:
    """A table at byte `at` of a buffer, whose fields are read by their number.

    The table begins with the distance back to its vtable: its size in bytes, the table's, then for
    each field its distance from the table's beginning, 0 for one that is left out; all 16 bits.
    """

    def __init__(self, buffer: Buffer, at: int) -> None:
        self.buffer, self._at = buffer, at
        self._fields = at - buffer.number("i", at)  # the vtable
        self._size: int = buffer.number("H", self._fields)

    def _place(self, field: int) -> int | None:
        """Return the position of a field; None where the table has none of that number."""
        at = 4 + 2 * field
        if at + 2 > self._size:
            return None
        offset = self.buffer.number("H", self._fields + at)
        return self._at + offset if offset else None

    def number(self, field: int, kind: str, default: Any = 0) -> Any:
        """Return the number in a field, `kind` as in `struct`."""
        at = self._place(field)
        return default if at is None else self.buffer.number(kind, at)

    def text(self, field: int) -> str:
        """Return the string in a field, "" without one."""
        return self.vector(field, 1).decode("utf-8", "backslashreplace")

    def table(self, field: int) -> Table | None:
        """Return the table that a field points to; None without one."""
        at = self._place(field)
        return None if at is None else Table(self.buffer, self.buffer.offset(at))

    def vector(self, field: int, itemsize: int) -> bytes:
        """Return the bytes of a vector of numbers of `itemsize` bytes; b"" without one."""
        at = self._place(field)
        if at is None:
            return b""
        start = self.buffer.offset(at)
        return self.buffer.bytes(start + 4, itemsize * self.buffer.number("I", start))

    def tables(self, field: int, read: Callable[[Table], T]) -> list[T]:
        """Return [read(table)] of the tables in a vector; [] without one."""
        at = self._place(field)
        if at is None:
            return []
        start = self.buffer.offset(at)
        n = self.buffer.number("I", start)
        self.buffer.bytes(start + 4, 4 * n)  # refuses an n that is too large
        places = range(start + 4, start + 4 + 4 * n, 4)
        return [read(Table(self.buffer, self.buffer.offset(place))) for place in places]


# ---- writing -------------------------------------------------------------------------------------

VERSION = 2  # of the checkpoint's format
ALIGNMENT = 8  # of tables and tensors' bytes
MOST_INSIDE = 1 << 30  # bytes of arrays in the file itself


def checkpoint_files(checkpoint: Checkpoint, path: Path) -> dict[Path, Iterable[Any]]:
    """Return {path: parts of bytes} of a checkpoint's file and, if need be, the one beside it.

    The file is a flatbuffer. Arrays of more than MOST_INSIDE bytes together go into
    `<path>.data`. Properties and numbers that ONNX Runtime's format cannot have are refused.
    """
    arrays = [*checkpoint.trained.values(), *checkpoint.frozen.values()]
    arrays += [a for g in checkpoint.groups for m in g.moments.values() for a in m.values()]
    outside = Outside() if sum(array.nbytes for array in arrays) > MOST_INSIDE else None
    data = _checkpoint_bytes(checkpoint, outside)
    if len(data) >= MOST_BYTES:
        words = f"{MOST_BYTES} bytes at most of names and properties"
        raise ArgumentError(f"{path}: expected {words}, got {len(data)}")
    if outside is None:
        return {path: [data]}
    return {path: [data], _beside(path): outside.parts()}


class Outside:
    """The arrays whose bytes are in the file beside a checkpoint, one behind the other."""

    def __init__(self) -> None:
        self.nbytes = 0  # of all arrays so far
        self._arrays: list[HostArray] = []

    def add(self, array: HostArray) -> int:
        """Add an array, and return the offset of its bytes in the file."""
        start = self.nbytes
        self._arrays.append(array)
        self.nbytes += array.nbytes
        return start

    def parts(self) -> Iterator[bytes]:
        """Yield the file's bytes, array by array."""
        return map(_little, self._arrays)


def _checkpoint_bytes(checkpoint: Checkpoint, outside: Outside | None) -> bytes:
    """Return the flatbuffer of a checkpoint; arrays' bytes are added to `outside` if it is there.

    Root: 0 version, 1 module (trained, frozen tensors), 2 groups, 3 properties (by type). Fields
    are (kind, value), as _Writer takes them; "q" is an int64, "f" a float32.
    """

    def rows(arrays: Mapping[str, HostArray]) -> list[Any]:
        return [_tensor_fields(name, array, outside) for name, array in arrays.items()]

    module: list[Any] = [("tables", rows(checkpoint.trained)), ("tables", rows(checkpoint.frozen))]
    if outside is not None:
        module += [None, ("?", True)]
    kinds: dict[type, list[Any]] = {int: [], float: [], str: []}
    for name, value in checkpoint.properties.items():
        if not _is_property(value):
            refuse("checkpoint", f"property {name!r}", "a number or text", shown(value))
        number = ("text", value) if isinstance(value, str) else ("qf"[type(value) is float], value)
        kinds[type(value)].append([("text", name), number])
    properties = [("tables", rows) for rows in kinds.values()]
    groups = []
    for group in checkpoint.groups:
        states = [[("text", n), ("tables", rows(m))] for n, m in group.moments.items()]
        numbers = ("q", group.step), ("f", group.initial_lr)
        groups.append([("text", group.name), *numbers, ("tables", states)])
    writer = _Writer()
    writer.root([("i", VERSION), ("table", module), ("tables", groups), ("table", properties)])
    return bytes(writer.data)


def _is_property(value: object) -> bool:
    """Return True if a value is text, or a number that fits into int64 or float32."""
    if type(value) not in (int, float):
        return type(value) is str
    try:
        struct.pack("<f" if type(value) is float else "<q", value)
    except (struct.error, OverflowError):
        return False
    return True


def _tensor_fields(name: str, array: HostArray, outside: Outside | None) -> list[Any]:
    """Return the fields of a tensor's table for _Writer, in the order that `_Reader._tensor` says.

    The array's bytes are one field, or are added to `outside`, and their offset is the field.
    """
    kind = int(onnx_package().helper.np_dtype_to_tensor_dtype(array.dtype))
    dims = struct.pack(f"<{array.ndim}q", *array.shape)
    fields = [("text", name), None, ("vector", dims, 8), ("i", kind)]
    if outside is not None:
        return [*fields, None, None, ("q", outside.add(array))]
    return [*fields, ("vector", _little(array), 1)]


def _little(array: HostArray) -> bytes:
    """Return the elements' bytes, little-endian."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


class _Writer:
    """Writes a flatbuffer front to back: each table, then what it points to.

    A table is a list of fields by number, each None or one of: ("i", "q", "f" or "?", a number);
    ("text", str); ("table", table); ("tables", list of tables); ("vector", bytes, bytes an element)
    """

    SIZES: ClassVar[dict[str, int]] = {"i": 4, "q": 8, "f": 4, "?": 1}

    def __init__(self) -> None:
        self.data = bytearray()

    def root(self, fields: Sequence[Field]) -> None:
        """Write the file's header and its root table."""
        self.data += bytes(4) + IDENTIFIER
        self._point(0, self._table(fields))

    def _table(self, fields: Sequence[Field]) -> int:
        """Write a table, then what it points to; return where it begins in the file.

        The offsets of its fields (its vtable, see Table) come first, then the fields, each aligned
        to its size.
        """
        places, size = [], 4  # of each field in the table, 0 without one; bytes of the table
        for each in fields:
            n = 0 if each is None else self.SIZES.get(each[0], 4)
            size += -size % n if n else 0  # up to a multiple of n
            places.append(size if n else 0)
            size += n
        self._pad(4 + 2 * len(fields))
        entries = struct.pack(f"<{2 + len(fields)}H", 4 + 2 * len(fields), size, *places)
        self.data += entries
        start = len(self.data)
        self.data += struct.pack("<i", len(entries)) + bytes(size - 4)
        for each, place in zip(fields, places, strict=True):
            if each is not None:
                self._field(start + place, *each)
        return start

    def _field(self, at: int, kind: str, value: Any, itemsize: int = 1) -> None:
        """Fill in a field at byte `at`: a number itself, else the offset of what is written now.

        kind: "i", "q", "f" or "?" of a number, "text", "table", "tables" or "vector". value: of
        that kind. itemsize: bytes of a vector's element.
        """
        if kind in self.SIZES:
            struct.pack_into(f"<{kind}", self.data, at, value)
        elif kind == "table":
            self._point(at, self._table(value))
        elif kind == "tables":
            self._point(at, self._tables(value))
        else:
            data = value.encode() if kind == "text" else value
            self._point(at, self._vector(data, itemsize, b"\0" if kind == "text" else b""))

    def _tables(self, rows: list[Any]) -> int:
        """Write a vector of tables' offsets, then the tables; return where it begins."""
        self._pad(0, 4)
        start = len(self.data)
        self.data += struct.pack("<I", len(rows)) + bytes(4 * len(rows))
        for i, row in enumerate(rows):
            self._point(start + 4 + 4 * i, self._table(row))
        return start

    def _vector(self, data: bytes, itemsize: int, end: bytes) -> int:
        """Write a vector: the number of elements, `data`, and the bytes `end`, such as a text's 0.

        itemsize: bytes of an element. Return where the vector begins in the file.
        """
        self._pad(4)
        start = len(self.data)
        self.data += struct.pack("<I", len(data) // itemsize) + data + end
        return start

    def _pad(self, before: int, alignment: int = ALIGNMENT) -> None:
        """Add zeros, so that what comes `before` bytes later is aligned."""
        self.data += bytes(-(len(self.data) + before) % alignment)

    def _point(self, at: int, place: int) -> None:
        """Write the offset from byte `at` to byte `place`, at `at`."""
        struct.pack_into("<I", self.data, at, place - at)
