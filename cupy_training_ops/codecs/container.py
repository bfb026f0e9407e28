# SPDX-License-Identifier: MIT
"""A header and an array in one file: NumPy's own .npz without pickle, with a format version.

The member `header` is JSON text, the member `code` is the array.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArgumentError, OpError
from .numpy_file import Archive, BinaryFile, NumpyArray, StrPath, load, member, reason

FORMAT = "cupy-training-ops packed array"
VERSION = 1

Header = dict[str, Any]


def write(stream: BinaryFile, header: Header, code: NumpyArray) -> None:
    """Write what `read` gives back; the header holds what JSON can say."""
    text = json.dumps({"format": FORMAT, "version": VERSION, **header})
    np.savez(stream, header=np.array(text), code=code)


def read(file: StrPath | BinaryFile) -> tuple[Header, NumpyArray]:
    """The header and the array of a file, which may be open; sequences in the header are lists.

    Raises FileNotFoundError, and ArgumentError for whatever else is wrong with the file.
    """
    try:
        with _opened(file) as stream, _archive(file, stream) as members:
            header = _checked(file, json.loads(str(member(members, "header"))))
            return header, member(members, "code")
    except (FileNotFoundError, OpError):
        raise
    except Exception as error:
        raise ArgumentError(
            f"{file}: no packed array, or a damaged one ({reason(error)})"
        ) from error


def _opened(file: StrPath | BinaryFile) -> contextlib.AbstractContextManager[BinaryFile]:
    """The file as a stream: NumPy leaves a damaged archive that it opened itself open."""
    if isinstance(file, str | os.PathLike):
        return Path(file).open("rb")
    return contextlib.nullcontext(file)


def _archive(file: object, stream: BinaryFile) -> Archive:
    loaded = load(stream, file)
    if isinstance(loaded, np.ndarray):
        raise ArgumentError(f"{file}: no packed array: it holds one of {loaded.dtype} as it is")
    return loaded


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
