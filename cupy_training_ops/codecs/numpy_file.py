# SPDX-License-Identifier: MIT
"""NumPy's .npy and .npz files, read without pickle: nothing in them is executed.

An array's header is read first, and compared with the number of bytes in the file before memory is
allocated.
"""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..dtypes import Dtype
from ..errors import ArgumentError, OpError, cut, raise_if_from_handler

NumpyArray = NDArray[np.generic]
StrPath = str | os.PathLike[str]
# First bytes of a .npy file, and of a .npz, a zip archive; the last one of an empty archive.
_NPY, _NPZ = b"\x93NUMPY", (b"PK\x03\x04", b"PK\x05\x06")
MAGIC = (_NPY, *_NPZ)
# errno of an OSError that means damage: bz2's errors, and a seek before the start of the file.
_BY_DAMAGE = (None, errno.EINVAL)


class BinaryFile(Protocol):
    """Methods of an open binary file, for reading or writing."""

    def read(self, size: int = ..., /) -> bytes: ...
    def write(self, data: bytes, /) -> object: ...
    def seek(self, offset: int, whence: int = ..., /) -> int: ...
    def seekable(self) -> bool: ...
    def tell(self) -> int: ...
    def flush(self) -> None: ...


class Header(NamedTuple):
    """An array's header."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    order: Literal["C", "F"]  # row-major or column-major


@dataclass(frozen=True)
class Stored:
    """An array in a file, read lazily."""

    name: str  # in messages
    open: Callable[[], AbstractContextManager[BinaryFile]]  # a stream at the array's header
    end: int  # position of the stream behind its last byte
    is_in_archive: bool  # a member of a .npz, compressed or not, with a checksum

    def is_array(self) -> bool:
        """Return True if it is an array: an archive may contain other files."""
        with refuse_damage(self.name), self.open() as stream:
            return stream.read(len(_NPY)) == _NPY

    def header(self) -> Header:
        """Read shape, dtype and order; refuse a file with fewer bytes than they need."""
        if not self.is_array():
            raise ArgumentError(f"{self.name} is no array")
        with refuse_damage(self.name), self.open() as stream:
            header = _header(stream)
            _check_size(header, self.end - stream.tell())
        return header

    def read(self) -> NumpyArray:
        """Read the array."""
        if self.header().dtype.hasobject:
            raise ArgumentError(f"{self.name}: holds Python objects, which are never loaded")
        with refuse_damage(self.name), self.open() as stream:
            array: NumpyArray = npy.read_array(stream, allow_pickle=False)
            if self.is_in_archive and stream.read(1):  # reading to the end compares the checksum
                raise ValueError("it goes on after its elements")
        return array

    def map(self) -> NumpyArray:
        """Map the array from the file; read it if it is in an archive, empty or cannot be mapped.

        An array of Python objects is refused, by `read`.
        """
        header = self.header()
        if self.is_in_archive or header.dtype.hasobject or not _nbytes(header):
            return self.read()
        with refuse_damage(self.name), self.open() as stream:
            _header(stream)
            array = _map(stream, header)
        return self.read() if array is None else array


def stored_arrays(
    stream: BinaryFile, name: object, expected: str = ".npy or .npz"
) -> Stored | dict[str, Stored]:
    """Return the array of an open .npy file, or those of a .npz file by name.

    name, expected: for messages.
    """
    start = stream.tell()
    magic = stream.read(len(_NPY))
    stream.seek(start)
    if magic == _NPY:
        return _array(stream, str(name))
    if not magic.startswith(_NPZ):
        why = "" if magic else ", as it is empty"
        raise ArgumentError(f"{name}: no {expected} file{why}")
    with refuse_damage(str(name)):
        archive = zipfile.ZipFile(stream)
    return {
        member.filename.removesuffix(".npy"): _member(archive, member, str(name))
        for member in archive.infolist()
    }


def write_header(stream: BinaryFile, shape: tuple[int, ...], dtype: Dtype) -> None:
    """Write the header of a .npy file; the caller writes the elements in row-major order."""
    about = {"shape": shape, "fortran_order": False, "descr": npy.dtype_to_descr(dtype)}
    npy.write_array_header_1_0(stream, about)


@contextlib.contextmanager
def refuse_damage(name: str) -> Iterator[None]:
    """Convert errors of parsers, which may be of any type, to ArgumentError.

    MemoryError and errors of the operating system are raised as they are. name: the file or array.
    """
    try:
        yield
    except (OpError, MemoryError, io.UnsupportedOperation):
        raise
    except Exception as error:
        raise_if_from_handler(error)
        if isinstance(error, OSError) and error.errno not in _BY_DAMAGE:
            raise
        first = (str(error).splitlines() or [type(error).__name__])[0]  # then NumPy advises pickle
        raise ArgumentError(f"{name}: no array to be read ({cut(first)})") from None


def _array(stream: BinaryFile, name: str) -> Stored:
    """Return the array of a .npy file, from the stream's position to its end."""
    start = stream.tell()
    end = stream.seek(0, os.SEEK_END)

    @contextlib.contextmanager
    def open_at_start() -> Iterator[BinaryFile]:
        stream.seek(start)
        yield stream

    return Stored(name, open_at_start, end, is_in_archive=False)


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> Stored:
    """Return the array of a member of the .npz file `name`, unread."""
    label = f"{name}: member {cut(member.filename.removesuffix('.npy'))}"
    return Stored(label, lambda: archive.open(member), member.file_size, is_in_archive=True)


def _header(stream: BinaryFile) -> Header:
    """Read a header of version 1, 2 or 3, which is read as 2: field names alone differ."""
    first = npy.read_magic(stream) == (1, 0)
    parse = npy.read_array_header_1_0 if first else npy.read_array_header_2_0
    shape, fortran_order, dtype = parse(stream)
    return Header(shape, dtype, "F" if fortran_order else "C")


def _nbytes(header: Header) -> int:
    return math.prod(header.shape) * header.dtype.itemsize


def _map(stream: Any, header: Header) -> NumpyArray | None:
    """Map an array whose bytes begin at the stream's position; None if it cannot be mapped."""
    try:
        return np.memmap(stream, header.dtype, "r", stream.tell(), header.shape, header.order)
    except (AttributeError, OSError):
        return None


def _check_size(header: Header, available: int) -> None:
    """Raise ValueError if the array needs more bytes than are available behind its header."""
    nbytes = _nbytes(header)
    if header.dtype.hasobject:  # a pickle, of any size
        return
    if min(header.shape, default=0) < 0 or nbytes > available:
        raise ValueError(f"{nbytes} bytes expected for {header.shape}, {available} are there")
