# SPDX-License-Identifier: MIT
"""ONNX Runtime's training checkpoint: parameters, states of optimizers, properties."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from .. import limits
from ..dtypes import HostArray, to_dtype
from ..errors import ArgumentError, DtypeError, OpError, cut
from .flatbuffer import Buffer, Table
from .reading import MOST_BYTES, from_bytes, read_bounded, read_part

IDENTIFIER = b"ODTC"
_INSIDE = -1  # the external offset of a tensor whose bytes are in the checkpoint


class Group(NamedTuple):
    """What an optimizer has of a group of parameters; `moments` by parameter, then by name."""

    name: str
    step: int
    initial_lr: float
    moments: Mapping[str, Mapping[str, HostArray]]


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds."""

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
        found: dict[str, HostArray] = {}
        for name, array in table.tables(field, self._tensor):
            if name in found:
                self._buffer.refuse(f"{cut(name)!r} is there twice")
            found[name] = array
        return found

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
            excess = limits.of_shape(shape)
            if excess is not None:
                raise ArgumentError(f"expected {excess.expected}, got {excess.got}")
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
    found: dict[str, int | float | str] = {}
    found.update(table.tables(0, lambda item: (item.text(0), int(item.number(1, "q")))))
    found.update(table.tables(1, lambda item: (item.text(0), float(item.number(1, "f", 0.0)))))
    found.update(table.tables(2, lambda item: (item.text(0), item.text(1))))
    return found
