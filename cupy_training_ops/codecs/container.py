# SPDX-License-Identifier: MIT
"""A header and arrays in one file: NumPy's own .npz without pickle, with a format version.

The member `header` is JSON text, every other member is an array. In all functions `file` is a path
or a stream, and `kind` the format that it has, or else is refused.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import ArgumentError, cut, shown
from .atomic_file import atomic_write
from .numpy_file import BinaryFile, NumpyArray, Stored, StrPath, refuse_damage, stored_arrays
from .safetensors_file import is_safetensors

Header = dict[str, Any]  # JSON object, without format and version


class Format(NamedTuple):
    """A kind of file: its name and versions in the header."""

    noun: str  # such as "optimizer state"
    version: int  # written to new files
    longest_header: int  # bytes; longer ones are refused
    oldest: int = 1  # oldest version that can be read

    @property
    def name(self) -> str:
        """The name in the header."""
        return f"cupy-training-ops {self.noun}"


class Opened(NamedTuple):
    """An open file: its header, with lists for tuples, and its unread arrays by name."""

    file: object  # path or stream, for messages
    format: Format
    header: Header
    members: Mapping[str, Stored]  # with "header"

    def member(self, name: str) -> Stored:
        """Return an array by name."""
        return _member(self.file, self.format, self.members, name)


def write(
    file: StrPath | BinaryFile,
    kind: Format,
    header: Header,
    arrays: Mapping[str, NumpyArray],
    sync: bool = True,
) -> None:
    """Write a .npz file for `load`; a path or a stream.

    header: a dictionary that JSON can express, to which name and version of `kind` are added.
    arrays: by the name of their member. A path is replaced atomically, with `sync` also if the
    machine crashes. Raises OSError.
    """
    text = json.dumps({"format": kind.name, "version": kind.version, **header})
    with _writable(file, kind, sync) as stream:
        np.savez(stream, header=np.array(text), **arrays)  # type: ignore[arg-type]


@contextlib.contextmanager
def load(file: StrPath | BinaryFile, kind: Format) -> Iterator[Opened]:
    """Yield the header and the unread arrays of a file, a path or open.

    Raises OSError, MemoryError, and ArgumentError for a damaged or foreign file.
    """
    with _readable(file, kind) as stream:
        if is_safetensors(stream):
            raise ArgumentError(f"{file}: no {kind.noun}: it is a .safetensors file")
        members = stored_arrays(stream, file)
        if isinstance(members, Stored):
            dtype = cut(str(members.header().dtype))
            raise ArgumentError(f"{file}: no {kind.noun}: it holds one of {dtype} as it is")
        header = _parse_header(file, kind, _member(file, kind, members, "header"))
        yield Opened(file, kind, checked_header(file, kind, header), members)


def names(file: StrPath | BinaryFile, kind: Format) -> bool:
    """Return True if a file's header says that it is of this kind; raises as `load`."""
    with _readable(file, kind) as stream:
        members = stored_arrays(stream, file)
        if isinstance(members, Stored) or "header" not in members:
            return False
        header = _parse_header(file, kind, members["header"])
    return isinstance(header, dict) and header.get("format") == kind.name


def _readable(
    file: StrPath | BinaryFile, kind: Format
) -> contextlib.AbstractContextManager[BinaryFile]:
    """Open a path for reading; a stream is not closed at the end."""
    if isinstance(file, str | os.PathLike):
        return Path(file).open("rb")
    return contextlib.nullcontext(_binary(file, kind, "seek"))


def _writable(
    file: StrPath | BinaryFile, kind: Format, sync: bool
) -> contextlib.AbstractContextManager[BinaryFile]:
    """Open a file for writing; a path is replaced when the stream is closed."""
    if isinstance(file, str | os.PathLike):
        return atomic_write(Path(file), sync)
    return contextlib.nullcontext(_binary(file, kind, "write"))


def _binary(file: BinaryFile, kind: Format, method: str) -> BinaryFile:
    """Return an open binary file; refuse a text file, and an object without this method."""
    if isinstance(file, io.TextIOBase) or not hasattr(file, method):
        expected = "a path, or a file opened in binary mode"
        raise ArgumentError(f"{kind.noun}: file: expected {expected}, got {shown(file)}")
    return file


def _member(file: object, kind: Format, members: Mapping[str, Stored], name: str) -> Stored:
    """Return an array by name; raise ArgumentError if the file has none."""
    if name not in members:
        raise ArgumentError(f"{file}: no {kind.noun}: it has no member {name!r}")
    return members[name]


def _parse_header(file: object, kind: Format, member: Stored) -> object:
    """Return the JSON value in the member `header`, a NumPy array of one text."""
    shape, dtype, _ = member.header()
    if shape != () or dtype.kind != "U" or dtype.itemsize > kind.longest_header:
        about = f"{cut(str(dtype))} of shape {shape}"
        raise ArgumentError(f"{file}: no {kind.noun}: its header is {about}")
    text = str(member.read())
    with refuse_damage(str(file)):
        return json.loads(text)


def checked_header(file: object, kind: Format, header: object) -> Header:
    """Remove format and version from a header and return it; refuse others than `kind`'s."""
    if not isinstance(header, dict) or header.pop("format", None) != kind.name:
        raise ArgumentError(f"{file}: no {kind.noun}: its header does not say {kind.name!r}")
    version = header.pop("version", None)
    readable = range(kind.oldest, kind.version + 1)
    if type(version) is not int or version not in readable:
        newer = isinstance(version, int) and version > kind.version
        hint = "; a newer cupy-training-ops may read it" if newer else ""
        expected = " or ".join(map(str, readable))
        raise ArgumentError(
            f"{file}: expected format version {expected}, got {shown(version)}{hint}"
        )
    return header
