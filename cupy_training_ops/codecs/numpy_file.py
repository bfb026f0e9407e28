# SPDX-License-Identifier: MIT
"""NumPy's .npy and .npz files, read without pickle: nothing in them is executed."""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from ..errors import ArgumentError

NumpyArray = NDArray[np.generic]
Archive = NpzFile[np.generic]
StrPath = str | os.PathLike[str]
_MAGIC = (b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06")  # .npy, .npz, a .npz of nothing


class BinaryFile(Protocol):
    """What NumPy calls of an open binary file, reading or writing."""

    def read(self, size: int = ..., /) -> bytes: ...
    def write(self, data: bytes, /) -> object: ...
    def seek(self, offset: int, whence: int = ..., /) -> int: ...
    def seekable(self) -> bool: ...
    def tell(self) -> int: ...
    def flush(self) -> None: ...


def load(stream: BinaryFile, name: object) -> NumpyArray | Archive:
    """The array of a .npy file or the archive of a .npz file; `name` is for the message."""
    start = stream.read(6)
    if not start.startswith(_MAGIC):  # NumPy takes every other file for a pickle
        raise ArgumentError(f"{name}: no .npy or .npz file")
    stream.seek(-len(start), os.SEEK_CUR)
    loaded: NumpyArray | Archive = np.load(stream, allow_pickle=False)
    return loaded


def member(archive: Archive, name: str) -> NumpyArray:
    """An array of an archive, which may hold anything else as well."""
    array = archive[name]
    if not isinstance(array, np.ndarray):
        raise ValueError(f"member {name} is no array")
    return array


def reason(error: Exception) -> str:
    """What NumPy's reader says of a damaged file, in one line.

    It lets through whatever its parsers raise, so that callers catch Exception.
    """
    return (str(error).splitlines() or [type(error).__name__])[0]
