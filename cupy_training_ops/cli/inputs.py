# SPDX-License-Identifier: MIT
"""Arrays from `.npy` and `.npz` files; whatever is wrong with a file is said in one line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..dtypes import BFLOAT16
from ..errors import OpError
from .errors import Failure

MAGIC = (b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06")  # .npy, .npz, a .npz of nothing


def read(path: Path) -> dict[str, Any]:
    """The arrays of a file by name; the one of a `.npy` file has the file's stem."""
    with readable(path), path.open("rb") as stream:
        if not stream.read(6).startswith(MAGIC):  # NumPy takes every other file for a pickle
            raise Failure(f"{path}: no .npy or .npz file")
        stream.seek(0)
        loaded = np.load(stream, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {path.stem: _native(loaded)}
        with loaded:
            return {name: _native(_member(loaded, name)) for name in loaded.files}


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn an unreadable or damaged file into a Failure."""
    try:
        yield
    except OSError as error:
        raise Failure(f"{path}: {error.strerror or error}") from None
    except OpError:
        raise
    except Exception as error:  # NumPy's reader lets through what any of its parsers raises
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Failure(f"{path}: no array to be read ({reason})") from None


def as_bfloat16(array: Any) -> Any:
    """An array of raw two-byte elements as what they are; others unchanged."""
    raw = array.dtype.itemsize == 2 and array.dtype.kind in "iuV"
    return array.view(BFLOAT16) if raw else array


def _member(archive: Any, name: str) -> Any:
    member = archive[name]
    if not isinstance(member, np.ndarray):
        raise ValueError(f"member {name} is no array")
    return member


def _native(array: Any) -> Any:
    """The array in row-major order and this machine's byte order, as operators take it."""
    return np.asarray(array, array.dtype.newbyteorder("="), order="C")
