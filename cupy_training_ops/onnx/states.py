# SPDX-License-Identifier: MIT
"""What a training session saves, and what it reads back of that."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..codecs import container
from ..codecs.numpy_file import BinaryFile, NumpyArray, StrPath
from ..dtypes import BFLOAT16
from ..errors import ArgumentError, cut, shown

FORMAT = container.Format("training session", version=1, longest_header=1 << 26)
_RAW = np.dtype(np.uint16)  # of bfloat16 in a file


def save(file: StrPath | BinaryFile, arrays: Mapping[str, Any], numbers: Mapping[str, Any]) -> None:
    """Write arrays and numbers; members of the file are numbered, names may be any text."""
    stored = {str(i): _raw(_on_host(array)) for i, array in enumerate(arrays.values())}
    container.write(file, FORMAT, {"names": list(arrays), **numbers}, stored)


def read(
    file: StrPath | BinaryFile, arrays: Mapping[str, Any], numbers: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, NumpyArray]]:
    """What `save` wrote of such numbers and arrays, all of which fit."""
    with container.opened(file, FORMAT) as opened:
        found = _checked_numbers(file, opened.header, list(arrays), numbers)
        members = {name: opened.member(str(i)) for i, name in enumerate(arrays)}
        for name, member in members.items():
            _check(file, name, member.header(), arrays[name])
        return found, {name: m.read().view(arrays[name].dtype) for name, m in members.items()}


def _checked_numbers(
    file: object, header: Mapping[str, Any], names: list[str], numbers: Mapping[str, Any]
) -> dict[str, Any]:
    if header.get("names") != names:
        raise ArgumentError(f"{file}: expected the state of a session of the same artifacts")
    found = {name: header.get(name) for name in numbers}
    for name, value in found.items():
        fits = type(value) is type(numbers[name]) and math.isfinite(value)  # type: ignore[arg-type]
        if not fits or (isinstance(value, int) and value < 0):
            raise ArgumentError(f"{file}: {name}: got {shown(value)}")
    return found


def _check(file: object, name: str, header: Any, array: Any) -> None:
    expected = _RAW if array.dtype == BFLOAT16 else array.dtype
    if header.shape != array.shape or header.dtype != expected:
        raise ArgumentError(
            f"{file}: {cut(name)!r}: expected {array.dtype} of shape {array.shape}, "
            f"got {header.dtype} of shape {header.shape}"
        )


def _on_host(array: Any) -> NumpyArray:
    return array if isinstance(array, np.ndarray) else array.get()


def _raw(array: NumpyArray) -> NumpyArray:
    """NumPy's files have no bfloat16: its elements are kept as they are."""
    return array.view(_RAW) if array.dtype == BFLOAT16 else array
