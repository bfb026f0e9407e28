# SPDX-License-Identifier: MIT
"""`.safetensors` files: tensors of any type, mapped, and the texts of `__metadata__`.

A file is the length of its header in 8 bytes, the header in JSON, and the tensors' bytes. Tensors
of types that NumPy lacks are copied as bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ..dtypes import BFLOAT16, Dtype, HostArray
from ..errors import ArgumentError, cut
from .numpy_file import MAGIC, BinaryFile, Header, NumpyArray

_START = 8  # bytes with the length of the header
_LONGEST_HEADER = 100_000_000  # bytes
_METADATA = "__metadata__"
# Floating-point types of 8 bits by their names in these files; no codec encodes them.
FP8: dict[str, Dtype] = {
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
}
_DTYPES: dict[str, Dtype] = {  # by name: I8, U8, ..., F64, and those below
    "BOOL": np.dtype(np.bool_),
    "BF16": BFLOAT16,
    "C64": np.dtype(np.complex64),
} | FP8 | {f"{kind.upper()}{8 * size}": np.dtype(f"<{kind}{size}")
     for kind in "iuf" for size in (1, 2, 4, 8) if (kind, size) != ("f", 1)}  # fmt: skip
NOT_NUMPYS = {"BF16": BFLOAT16, **FP8}  # types that ml_dtypes adds to NumPy's
_TYPES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class Tensor:
    """A tensor of an open file: its type's name there, its shape, and its bytes."""

    label: str  # in messages
    type: str
    shape: tuple[int, ...]
    content: HostArray  # uint8

    def is_array(self) -> bool:
        """Return True if NumPy or ml_dtypes has arrays of its type."""
        return self.type in _DTYPES

    def header(self) -> Header:
        """Return shape, dtype and order; refuse a type that NumPy lacks."""
        if not self.is_array():
            raise ArgumentError(f"{self.label}: NumPy has no type {self.type}")
        return Header(self.shape, _DTYPES[self.type], "C")

    def map(self) -> NumpyArray:
        """Return its values as a view of the mapped file; a copy if they are not aligned."""
        dtype = self.header().dtype
        values = self.content
        if values.ctypes.data % dtype.itemsize:  # operators take aligned arrays
            values = values.copy()
        return values.view(dtype).reshape(self.shape)


class Opened(NamedTuple):
    """The tensors of a file by name, and the texts of its `__metadata__`."""

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]


class Entry(NamedTuple):
    """A tensor to be written: name, type's name, shape, and parts of its bytes."""

    name: str
    type: str
    shape: tuple[int, ...]
    nbytes: int
    parts: Iterable[Any]  # each a buffer


def type_name(dtype: Dtype) -> str:
    """Return the name of a dtype in these files; raise ArgumentError if they have none."""
    name = _TYPES.get(dtype.newbyteorder("=") if dtype.kind in "iufc" else dtype)
    if name is None:
        raise ArgumentError(f".safetensors has no type {cut(str(dtype))}; .npz has it")
    return name


def is_safetensors(stream: BinaryFile) -> bool:
    """Return True if the file begins like one: eight bytes, then JSON."""
    start = stream.tell()
    head = stream.read(_START + 1)
    stream.seek(start)
    return head[_START:] == b"{" and not head.startswith(MAGIC)


def tensors(path: str | None, stream: BinaryFile, name: object) -> Opened:
    """Return the tensors of a file, mapped from path, or read from the stream if path is None.

    stream: open at the file's start. name: for messages.
    """
    try:
        length = int.from_bytes(stream.read(_START), "little")
        if length > _LONGEST_HEADER:
            raise ValueError(f"a header of {length} bytes")
        header = json.loads(stream.read(length), object_pairs_hook=_without_twins)
        if path is None:
            content = np.frombuffer(stream.read(), np.uint8)
        else:
            whole = np.memmap(path, np.uint8, "r")
            content = whole[_START + length :]
        return _opened(header, content, name)
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError) as error:
        raise ArgumentError(f"{name}: no tensors to be read ({cut(str(error))})") from None


def save(stream: BinaryFile, entries: Iterable[Entry], metadata: Mapping[str, str]) -> None:
    """Write tensors (entries) and texts (metadata); those of wide elements first, as that aligns
    each."""
    ordered = sorted(entries, key=lambda entry: -_alignment(entry))
    header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    end = 0
    for entry in ordered:
        offsets = [end, end + entry.nbytes]
        header[entry.name] = {"dtype": entry.type, "shape": entry.shape, "data_offsets": offsets}
        end += entry.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that tensors begin at a multiple of 8 bytes
    stream.write(len(text).to_bytes(_START, "little") + text)
    for entry in ordered:
        for part in entry.parts:
            stream.write(part)


def _alignment(entry: Entry) -> int:
    """Return the bytes of an element; 1 for a type that NumPy lacks."""
    dtype = _DTYPES.get(entry.type)
    return 1 if dtype is None else dtype.itemsize


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dictionary; raise ValueError if a name is there twice."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("two members of one name")
    return members


def _opened(header: Any, content: HostArray, name: object) -> Opened:
    """Return tensors as views of the bytes behind the header; raise ValueError if they do not fit.

    header: JSON value, {name: {"dtype", "shape", "data_offsets": [first, last]}, ...}. content:
    uint8, all bytes of tensors, in which they have to lie without gaps.
    """
    metadata = header.pop(_METADATA, {})
    if not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError(f"{_METADATA} holds other than texts")
    tensors, end = {}, 0
    for key, about in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = about["data_offsets"]
        kind, shape = about["dtype"], tuple(about["shape"])
        numbers = (*shape, first, last)
        if type(kind) is not str or any(type(n) is not int or n < 0 for n in numbers):
            raise ValueError(f"tensor {key!r} is not described by a type, a shape and offsets")
        if first != end or last < first:
            raise ValueError(f"tensor {key!r} does not begin where the one before ends")
        if kind in _DTYPES and math.prod(shape) * _DTYPES[kind].itemsize != last - first:
            raise ValueError(f"tensor {key!r} of {kind} {shape} has {last - first} bytes")
        end = last
        tensors[key] = Tensor(f"{name}: tensor {cut(key)}", kind, shape, content[first:last])
    if end != content.size:
        raise ValueError(f"{end} bytes of tensors, {content.size} are there")
    return Opened(tensors, metadata)
