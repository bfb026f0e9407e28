# SPDX-License-Identifier: MIT
"""Arrays of .npy, .npz and .safetensors files, from a path or "-"; what is wrong is one line."""

from __future__ import annotations

import contextlib
import io
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import click
import numpy as np

from ..codecs import Packed, container, packed_file
from ..codecs.numpy_file import BinaryFile, Header, NumpyArray, Stored, stored_arrays
from ..codecs.packed_file import PackedFile, Uncoded
from ..codecs.safetensors_file import FP8, Opened, Tensor, is_safetensors, tensors
from ..codecs.table import Codec
from ..dtypes import BFLOAT16
from ..errors import cut, unknown
from .errors import Failure, reading
from .terminal import say

STREAM = "-"  # stdin as FILE, stdout as OUT; `./-` is a file of that name
MAX_LISTED = 100  # characters of the names of arrays in a message
NAMELESS = "array"  # name of an array from stdin, or of one whose name is empty


class _FilePath(click.Path):
    """A path, or "-"; an empty one, as of a variable that is not set, is refused."""

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> Any:
        """Return the path as it is; refuse an empty one."""
        return super().convert(value, param, ctx) if value else self.fail("empty", param, ctx)


file_type = _FilePath(allow_dash=True)
KINDS = ".npy, .npz or .safetensors"


class Unread(Protocol):
    """An array of a file, read on demand: Stored or Tensor."""

    def is_array(self) -> bool: ...
    def header(self) -> Header: ...
    def map(self) -> NumpyArray: ...


class Member(NamedTuple):
    """An array of a file, by its name there."""

    file: str
    name: str
    unread: Unread
    texts: Mapping[str, str] = MappingProxyType({})  # of the whole file

    def dtype(self, raw: bool) -> np.dtype[np.generic] | None:
        """Return the array's dtype without reading it; None if it is no array.

        raw: two-byte elements (see is_raw) are bfloat16.
        """
        with reading(self.file):
            if not self.unread.is_array():
                return None
            dtype = self.unread.header().dtype.newbyteorder("=")
        return BFLOAT16 if raw and is_raw(dtype) else dtype

    def read(self, raw: bool) -> NumpyArray:
        """Return the array in row-major order and this machine's byte order, as operators take it.

        One of a `.npy` file that has both is mapped, not read. raw: two-byte elements are bfloat16.
        """
        with reading(self.file):
            stored = self.unread.map()
        array = np.asarray(stored, stored.dtype.newbyteorder("="), order="C")
        return array.view(BFLOAT16) if raw and is_raw(array.dtype) else array

    def uncoded(self, raw: bool) -> Uncoded:
        """Return the array as an uncoded item of a packed file, also of a type that NumPy lacks.

        raw: two-byte elements are bfloat16.
        """
        if isinstance(self.unread, Tensor):
            return Uncoded.of_tensor(self.unread)
        return Uncoded.of_array(self.read(raw))

    def skip(self, reason: str) -> None:
        """Say on stderr that the array is left out."""
        say(f"{self.file}: {cut(self.name)}: skipped: {reason}", err=True)


class Piped(io.BytesIO):
    """The content of a pipe as a seekable stream; str(): its name in messages."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self._name = name

    def __str__(self) -> str:
        return self._name


@contextlib.contextmanager
def open_arrays(file: str) -> Iterator[list[Member]]:
    """Yield the arrays of a file, unread; the one of a `.npy` file is named by the file's stem."""
    with contextlib.ExitStack() as stack:
        with reading(file):  # errors inside the caller's context are not about this file
            stream = stack.enter_context(_stream(file))
            arrays, texts = _contents(file, stream)
        yield [Member(file, name, unread, texts) for name, unread in arrays.items()]


@contextlib.contextmanager
def open_contents(file: str) -> Iterator[Packed | PackedFile | list[Member]]:
    """Yield the content of a file: a packed array or file, read; else its arrays, unread."""
    with contextlib.ExitStack() as stack:
        with reading(file):
            stream = stack.enter_context(_stream(file))
            arrays, texts = _contents(file, stream)
            members = [Member(file, name, unread) for name, unread in arrays.items()]
            is_packed = packed_file.KEY in texts or _has_description(members)
            packed = _load(stream, file) if is_packed else None
        yield members if packed is None else packed


def array_names(file: str) -> list[str]:
    """Return the names of the arrays in a file, packed or not."""
    with open_contents(file) as content:
        if isinstance(content, Packed):
            return [stem(file)]
        if isinstance(content, PackedFile):
            return list(content.items)
        return [member.name for member in content]


def read_packed(file: str) -> Packed | PackedFile:
    """Read a packed array or a packed file."""
    with reading(file), _stream(file) as stream:
        return _load(stream, file)


def stem(file: str) -> str:
    """Return the name of the only array of a file: the file's name without its ending.

    Of stdin it is NAMELESS.
    """
    return NAMELESS if file == STREAM else Path(file).stem


def is_raw(dtype: np.dtype[np.generic]) -> bool:
    """Return True if elements of this type may be bfloat16 in one of NumPy's files."""
    return dtype.itemsize == 2 and dtype.kind in "iuV"


def select(members: list[Member], names: tuple[str, ...]) -> list[Member]:
    """Return the members of these names; refuse a name that none has."""
    check_names([member.name for member in members], names)
    return [member for member in members if member.name in names]


def check_names(there: list[str], names: tuple[str, ...]) -> None:
    """Refuse a name that no array has; there: names of the arrays."""
    for name in names:
        if name not in there:
            raise Failure(unknown("array", name, there, names_hint(there)))


@contextlib.contextmanager
def naming(files: tuple[str, ...]) -> Iterator[None]:
    """Put the names of files ahead of a Failure's message."""
    try:
        yield
    except Failure as failure:
        raise Failure(f"{', '.join(files)}: {failure.message}") from None


def names_hint(names: list[str]) -> str:
    """Return a hint, "there are: a, b ...", with at most MAX_LISTED characters of names."""
    shortened = textwrap.shorten(", ".join(names), MAX_LISTED, placeholder=" ...")
    return f"there are: {shortened or 'none'}"


def _load(stream: BinaryFile, file: str) -> Packed | PackedFile:
    """Read a packed array or file from the start of a stream; file: its path or name."""
    stream.seek(0)
    if is_safetensors(stream):
        opened = _opened(file, stream)
        if packed_file.KEY not in opened.metadata:
            raise Failure(f"{file}: no packed file: its metadata has no {packed_file.KEY!r}")
        return packed_file.from_safetensors(opened, file)
    stored_arrays(stream, file, KINDS)
    stream.seek(0)
    whole = stream if isinstance(stream, Piped) else file
    if container.names(whole, packed_file.FORMAT):
        stream.seek(0)
        return packed_file.from_npz(whole)
    stream.seek(0)
    return Packed.load(whole)


def _has_description(members: list[Member]) -> bool:
    """Return True if a .npz has a member "header" that is a text: it is a packed array or file."""
    headers = [member.dtype(raw=False) for member in members if member.name == "header"]
    return any(dtype is not None and dtype.kind == "U" for dtype in headers)


def _contents(file: str, stream: BinaryFile) -> tuple[Mapping[str, Unread], Mapping[str, str]]:
    """Return ({name: unread array}, texts) of an open file; only .safetensors has texts."""
    if is_safetensors(stream):
        return _opened(file, stream)
    one_or_more = stored_arrays(stream, file, KINDS)
    arrays = {stem(file): one_or_more} if isinstance(one_or_more, Stored) else one_or_more
    return arrays, {}


def _opened(file: str, stream: BinaryFile) -> Opened:
    """Return the tensors of an open .safetensors file: mapped, or read if it is a pipe."""
    return tensors(None if isinstance(stream, Piped) else file, stream, file)


@contextlib.contextmanager
def _stream(file: str) -> Iterator[BinaryFile]:
    """Yield a seekable stream of a file; a pipe, and "-" for stdin, is read whole first."""
    if file == STREAM:
        if sys.stdin is None:
            raise Failure(f"{file}: stdin is closed")
        yield Piped(sys.stdin.buffer.read(), file)
        return
    with open(file, "rb") as stream:
        yield stream if stream.seekable() else Piped(stream.read(), file)


# ---- the codec filter ----------------------------------------------------------------------------


def why_left_out(member: Member, codecs: Sequence[Codec], raw: bool) -> str | None:
    """Return why none of the codecs takes an array, the unread `member`; None if one does.

    codecs: empty for any codec, which takes floating-point arrays. raw: two-byte elements are
    bfloat16.
    """
    dtype = member.dtype(raw)
    if dtype is None:
        tensor = member.unread
        return f"{tensor.type} is no type of NumPy's" if isinstance(tensor, Tensor) else "no array"
    if dtype in FP8.values():
        return f"no codec takes {dtype}"
    is_floating = dtype.kind == "f" or dtype == BFLOAT16
    if any(dtype in codec.dtypes for codec in codecs) or (not codecs and is_floating):
        return None
    hint = "; --dtype bfloat16 reads raw two-byte arrays" if dtype == "V2" else ""
    kind = cut(str(dtype))
    if not codecs:
        return f"{kind} is no floating-point type{hint}"
    names = ", ".join(codec.name for codec in codecs)
    which = f"{names} does" if len(codecs) == 1 else f"{names} do"
    return f"{which} not take {kind}{hint}"
