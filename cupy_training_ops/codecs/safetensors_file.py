# SPDX-License-Identifier: MIT
"""`.safetensors` files, by the library of that name, in the extra `safetensors`.

Unlike NumPy's files they support bfloat16.
"""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from ..dtypes import BFLOAT16, Dtype
from ..errors import ArgumentError, cut
from .numpy_file import MAGIC, BinaryFile, Header, NumpyArray

_START = 8  # bytes with the length of the header
# Types whose values the library does not return as NumPy arrays.
UNREAD: dict[str, Dtype] = {
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
_DTYPES: dict[str, Dtype] = {
    "BOOL": np.dtype(np.bool_),
    "BF16": BFLOAT16,
    "C64": np.dtype(np.complex64),
} | UNREAD | {f"{kind.upper()}{8 * size}": np.dtype(f"{kind}{size}")
     for kind in "iuf" for size in (1, 2, 4, 8) if (kind, size) != ("f", 1)}  # fmt: skip


class Tensor:
    """A tensor of an open file, read lazily."""

    def __init__(self, file: Any, name: str, label: str) -> None:
        self._file = file
        self._name = name
        self._label = f"{label}: tensor {cut(name)}"

    def is_array(self) -> bool:
        """Return True if NumPy has arrays of its type."""
        return self._type() in _DTYPES

    def header(self) -> Header:
        """Return shape and type."""
        if not self.is_array():
            raise ArgumentError(f"{self._label}: NumPy has no type {self._type()}")
        shape = tuple(self._file.get_slice(self._name).get_shape())
        return Header(shape, _DTYPES[self._type()], "C")

    def map(self) -> NumpyArray:
        """Read its values."""
        self.header()
        try:
            values: NumpyArray = self._file.get_tensor(self._name)
        except (AttributeError, KeyError, TypeError):  # one of UNREAD
            raise ArgumentError(f"{self._label}: {self._type()} cannot be read") from None
        return values

    def _type(self) -> str:
        return str(self._file.get_slice(self._name).get_dtype())


def is_safetensors(stream: BinaryFile) -> bool:
    """Return True if the file begins like one: eight bytes, then JSON."""
    start = stream.tell()
    head = stream.read(_START + 1)
    stream.seek(start)
    return head[_START:] == b"{" and not head.startswith(MAGIC)


@contextlib.contextmanager
def tensors(path: str | None, stream: BinaryFile, name: object) -> Iterator[Mapping[str, Tensor]]:
    """Yield the unread tensors of a file by name; a stream without a path is copied to one."""
    library = _library()
    with _with_path(path, stream) as place:
        try:
            opened = library.safe_open(place, framework="numpy")
        except library.SafetensorError as error:
            raise ArgumentError(f"{name}: no tensors to be read ({cut(str(error))})") from None
    with opened as file:
        yield {key: Tensor(file, key, str(name)) for key in file.keys()}  # noqa: SIM118


def save(stream: BinaryFile, arrays: Mapping[str, NumpyArray]) -> None:
    """Write arrays by name."""
    _library()
    from safetensors.numpy import save as saved

    stream.write(saved(dict(arrays)))


def _library() -> ModuleType:
    try:
        return importlib.import_module("safetensors")
    except ImportError:
        raise ArgumentError(
            "safetensors is not here; install it with: pip install 'cupy-training-ops[safetensors]'"
        ) from None


@contextlib.contextmanager
def _with_path(path: str | None, stream: BinaryFile) -> Iterator[str]:
    """Yield a path for the library; without one, of a temporary copy of the stream."""
    if path is not None:
        yield path
        return
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as copy:
        copy.write(stream.read())
        copy.flush()
        yield copy.name
