# SPDX-License-Identifier: MIT
"""Arrays from `.npy` and `.npz` files; whatever is wrong with a file is said in one line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..codecs.numpy_file import NumpyArray, load, member, reason
from ..dtypes import BFLOAT16
from ..errors import OpError
from .errors import Failure


def read(path: Path) -> dict[str, NumpyArray]:
    """The arrays of a file by name; the one of a `.npy` file has the file's stem."""
    with readable(path), path.open("rb") as stream:
        loaded = load(stream, path)
        if isinstance(loaded, np.ndarray):
            return {path.stem: _native(loaded)}
        with loaded:
            return {name: _native(member(loaded, name)) for name in loaded.files}


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn an unreadable or damaged file into a Failure."""
    try:
        yield
    except OSError as error:
        raise Failure(f"{path}: {error.strerror or error}") from None
    except OpError:
        raise
    except Exception as error:
        raise Failure(f"{path}: no array to be read ({reason(error)})") from None


def as_bfloat16(array: NumpyArray) -> NumpyArray:
    """An array of raw two-byte elements as what they are; others unchanged."""
    raw = array.dtype.itemsize == 2 and array.dtype.kind in "iuV"
    return array.view(BFLOAT16) if raw else array


def _native(array: NumpyArray) -> NumpyArray:
    """The array in row-major order and this machine's byte order, as operators take it."""
    return np.asarray(array, array.dtype.newbyteorder("="), order="C")
