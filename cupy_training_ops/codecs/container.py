# SPDX-License-Identifier: MIT
"""A header and an array in one file: NumPy's own .npz without pickle, with a format version.

The member `header` is JSON text, the member `code` is the array.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArgumentError
from .numpy_file import BinaryFile, NumpyArray, Stored, StrPath, stored, undamaged

FORMAT = "cupy-training-ops packed array"
VERSION = 1
LONGEST_HEADER = 1 << 20  # bytes; far more than any array's description

Header = dict[str, Any]


def write(stream: BinaryFile, header: Header, code: NumpyArray) -> None:
    """Write what `opened` gives back; the header holds what JSON can say."""
    text = json.dumps({"format": FORMAT, "version": VERSION, **header})
    np.savez(stream, header=np.array(text), code=code)


@contextlib.contextmanager
def opened(file: StrPath | BinaryFile) -> Iterator[tuple[Header, Stored]]:
    """The header and the unread array of a file, which may be open; sequences in it are lists.

    Raises OSError and MemoryError, and ArgumentError for whatever else is wrong with the file.
    """
    with _stream(file) as stream:
        members = stored(stream, file)
        if isinstance(members, Stored):
            dtype = members.header().dtype
            raise ArgumentError(f"{file}: no packed array: it holds one of {dtype} as it is")
        header = _checked(file, _parsed(file, _member(file, members, "header")))
        yield header, _member(file, members, "code")


def _stream(file: StrPath | BinaryFile) -> contextlib.AbstractContextManager[BinaryFile]:
    if isinstance(file, str | os.PathLike):
        return Path(file).open("rb")
    return contextlib.nullcontext(file)


def _member(file: object, members: dict[str, Stored], name: str) -> Stored:
    if name not in members:
        raise ArgumentError(f"{file}: no packed array: it has no member {name!r}")
    return members[name]


def _parsed(file: object, member: Stored) -> Any:
    shape, dtype, _ = member.header()
    if shape != () or dtype.kind != "U" or dtype.itemsize > LONGEST_HEADER:
        raise ArgumentError(f"{file}: no packed array: its header is {dtype} of shape {shape}")
    text = str(member.read())
    with undamaged(str(file)):
        return json.loads(text)


def _checked(file: object, header: Any) -> Header:
    """What `write` was given, if this is the format and the version that it writes."""
    if not isinstance(header, dict) or header.pop("format", None) != FORMAT:
        raise ArgumentError(f"{file}: no packed array: its header does not say {FORMAT!r}")
    version = header.pop("version", None)
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        raise ArgumentError(
            f"{file}: expected format version {VERSION}, got {version!r}"
            f"{'; a newer cupy-training-ops may read it' if newer else ''}"
        )
    return header
