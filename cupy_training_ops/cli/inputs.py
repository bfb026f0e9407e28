# SPDX-License-Identifier: MIT
"""Arrays of .npy, .npz and .safetensors files, from a path or "-"; what is wrong is one line."""

from __future__ import annotations

import contextlib
import io
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import click
import numpy as np

from ..codecs import Packed
from ..codecs.numpy_file import BinaryFile, Header, NumpyArray, Stored, stored
from ..codecs.safetensors_file import is_safetensors, tensors
from ..dtypes import BFLOAT16
from ..errors import cut, unknown
from .errors import Failure, reading
from .printable import say

STREAM = "-"  # stdin as FILE, stdout as OUT; `./-` is a file of that name
MAX_LISTED = 100  # characters of the names of arrays in a message
NAMELESS = "array"  # what comes from stdin, or has an empty name

file_type = click.Path(allow_dash=True)


class Unread(Protocol):
    """An array that is not read before it is asked for."""

    def is_array(self) -> bool: ...
    def header(self) -> Header: ...
    def mapped(self) -> NumpyArray: ...


class Member(NamedTuple):
    """An array of a file, by its name there."""

    file: str
    name: str
    unread: Unread

    def dtype(self, raw: bool) -> np.dtype[np.generic] | None:
        """Its type, bfloat16 for `raw` two-byte elements; None for what is no array."""
        with reading(self.file):
            if not self.unread.is_array():
                return None
            dtype = self.unread.header().dtype.newbyteorder("=")
        return BFLOAT16 if raw and is_raw(dtype) else dtype

    def read(self, raw: bool) -> NumpyArray:
        """The array in row-major order and this machine's byte order, as operators take it.

        That of a `.npy` file which has both is read when it is looked at.
        """
        with reading(self.file):
            found = self.unread.mapped()
        array = np.asarray(found, found.dtype.newbyteorder("="), order="C")
        return array.view(BFLOAT16) if raw and is_raw(array.dtype) else array

    def skip(self, reason: str) -> None:
        """Say on stderr that it is left out."""
        say(f"{self.file}: {cut(self.name)}: skipped: {reason}", err=True)


class Piped(io.BytesIO):
    """What came through a pipe, read in any order, under the name that messages give it."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self._name = name

    def __str__(self) -> str:
        return self._name


@contextlib.contextmanager
def opened(file: str) -> Iterator[list[Member]]:
    """The unread arrays of a file; the one of a `.npy` file has the file's stem."""
    with contextlib.ExitStack() as stack:
        with reading(file):  # and not what is done with them
            _, members = _entered(stack, file)
        yield members


@contextlib.contextmanager
def contents(file: str) -> Iterator[Packed | list[Member]]:
    """The packed array of a file that says it is one, else its unread arrays."""
    with contextlib.ExitStack() as stack:
        with reading(file):
            stream, members = _entered(stack, file)
            packed = _loaded(stream, file) if _has_description(members) else None
        yield members if packed is None else packed


def unpacked(file: str) -> Packed:
    """The packed array of a file."""
    with reading(file), _stream(file) as stream:
        return _loaded(stream, file)


def stem(file: str) -> str:
    """What an array is called whose file names none."""
    return NAMELESS if file == STREAM else Path(file).stem


def is_raw(dtype: np.dtype[np.generic]) -> bool:
    """Whether elements of this type may be bfloat16 as it is kept in NumPy's files."""
    return dtype.itemsize == 2 and dtype.kind in "iuV"


def named(members: list[Member], names: tuple[str, ...]) -> list[Member]:
    """Those of these names, each of which has to be among them."""
    there = [member.name for member in members]
    for name in names:
        if name not in there:
            raise Failure(unknown("array", name, there, listed(there)))
    return [member for member in members if member.name in names]


@contextlib.contextmanager
def about(files: tuple[str, ...]) -> Iterator[None]:
    """Name the files that a failure is about."""
    try:
        yield
    except Failure as failure:
        raise Failure(f"{', '.join(files)}: {failure.message}") from None


def listed(names: list[str]) -> str:
    """The names there are, as far as they fit a hint."""
    shortened = textwrap.shorten(", ".join(names), MAX_LISTED, placeholder=" ...")
    return f"there are: {shortened or 'none'}"


def _loaded(stream: BinaryFile, file: str) -> Packed:
    """A pipe has been read; it is named in messages by `str`, as a path is."""
    stream.seek(0)
    return Packed.load(stream if isinstance(stream, Piped) else file)


def _has_description(members: list[Member]) -> bool:
    """Whether the file says that it is more than its arrays."""
    headers = [member.dtype(raw=False) for member in members if member.name == "header"]
    return any(dtype is not None and dtype.kind == "U" for dtype in headers)


def _entered(stack: contextlib.ExitStack, file: str) -> tuple[BinaryFile, list[Member]]:
    stream = stack.enter_context(_stream(file))
    found = stack.enter_context(_arrays(file, stream))
    return stream, [Member(file, name, unread) for name, unread in found.items()]


@contextlib.contextmanager
def _arrays(file: str, stream: BinaryFile) -> Iterator[Mapping[str, Unread]]:
    if is_safetensors(stream):
        with tensors(None if isinstance(stream, Piped) else file, stream, file) as found:
            yield found
    else:
        one_or_more = stored(stream, file, ".npy, .npz or .safetensors")
        yield {stem(file): one_or_more} if isinstance(one_or_more, Stored) else one_or_more


@contextlib.contextmanager
def _stream(file: str) -> Iterator[BinaryFile]:
    """The open file; a pipe, which is read in one direction, is read whole."""
    if file == STREAM:
        if sys.stdin is None:
            raise Failure(f"{file}: stdin is closed")
        yield Piped(sys.stdin.buffer.read(), file)
        return
    with open(file, "rb") as stream:
        yield stream if stream.seekable() else Piped(stream.read(), file)
