# SPDX-License-Identifier: MIT
"""Arrays from `.npy` and `.npz` files; whatever is wrong with a file is said in one line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..codecs.numpy_file import NumpyArray, Stored, stored
from .errors import reading


@contextlib.contextmanager
def opened(path: Path) -> Iterator[dict[str, Stored]]:
    """The unread arrays of a file by name; the one of a `.npy` file has the file's stem."""
    with reading(path), path.open("rb") as stream:
        found = stored(stream, path)
        yield {path.stem: found} if isinstance(found, Stored) else found


def read(array: Stored) -> NumpyArray:
    """An array in row-major order and this machine's byte order, as operators take it.

    That of a `.npy` file which has both is read when it is looked at.
    """
    found = array.mapped()
    return np.asarray(found, found.dtype.newbyteorder("="), order="C")


def is_raw(dtype: np.dtype[np.generic]) -> bool:
    """Whether elements of this type may be bfloat16 as it is kept in NumPy's files."""
    return dtype.itemsize == 2 and dtype.kind in "iuV"
