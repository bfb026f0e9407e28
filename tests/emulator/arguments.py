# SPDX-License-Identifier: MIT
"""Checks a launch's arguments against the kernel's signature and lays them out in memory.

CuPy checks nothing here: a Python int passed for a C int arrives as 8 bytes, without a word.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .memory import GuardedArrays, device_address

# Arrays, NumPy scalars, addresses and None: see check_arguments.
Arguments = tuple[Any, ...]

_KIND_NAMES = {
    "p": "a pointer",
    "b": "a bool",
    "i": "an integer",
    "u": "an integer",
    "f": "a floating-point number",
    "s": "a structure",
}


@dataclass(frozen=True)
class ParameterType:
    """Kind (see trampoline.h) and size of one parameter."""

    kind: str
    nbytes: int

    def __str__(self) -> str:
        """What an argument must be, in words."""
        name = _KIND_NAMES[self.kind]
        return name if self.kind == "p" else f"{name} of {self.nbytes} bytes"


def check_arguments(kernel: str, parameters: Sequence[ParameterType], args: Arguments) -> None:
    """Raise a TypeError that names the kernel and the argument unless all arguments fit."""
    if len(args) != len(parameters):
        raise TypeError(f"{kernel} takes {len(parameters)} arguments, not {len(args)}")
    for index, (parameter, value) in enumerate(zip(parameters, args, strict=True)):
        problem = _pointer_problem(value) if parameter.kind == "p" else _problem(parameter, value)
        if problem:
            raise TypeError(f"{kernel}: argument {index} must be {parameter}, not {problem}")


def _pointer_problem(value: object) -> str | None:
    if isinstance(value, np.ndarray | np.uint64) or value is None or type(value) is int:
        return None
    return f"{type(value).__name__} (pass an array, None or an address)"


def _problem(parameter: ParameterType, value: object) -> str | None:
    if isinstance(value, np.ndarray) and not (value.ndim == 0 and _kind(value.dtype) == "s"):
        return "an array"
    if not isinstance(value, np.generic | np.ndarray):
        return f"{type(value).__name__} (pass a NumPy scalar, which has a size)"
    kinds = "iu" if parameter.kind in "iu" else parameter.kind
    if _kind(value.dtype) not in kinds or value.nbytes != parameter.nbytes:
        return f"{value.dtype} ({value.nbytes} bytes)"
    return None


def _kind(dtype: np.dtype) -> str:
    if dtype.name == "bfloat16":
        return "f"
    return dtype.kind if dtype.kind in "biuf" else "s"


class PackedArguments:
    """Argument values in memory, and the array of their addresses that a kernel takes."""

    def __init__(
        self, parameters: Sequence[ParameterType], args: Arguments, memory: GuardedArrays
    ) -> None:
        """Addresses within the launch's arrays become addresses within their copies."""
        self._values = [
            _pointer(value, memory) if parameter.kind == "p" else _scalar(value, memory)
            for parameter, value in zip(parameters, args, strict=True)
        ]
        addresses = [value.ctypes.data for value in self._values]
        self.addresses = (ctypes.c_void_p * max(len(args), 1))(*addresses)

    def words(self) -> list[int]:
        """All that may be an address: values of eight bytes, and every eight of a structure."""
        whole = [value.view(np.uint8) for value in self._values if value.nbytes >= 8]
        return [int(word) for v in whole for word in v[: v.size // 8 * 8].view(np.uint64)]


def _pointer(value: np.ndarray | np.uint64 | int | None, memory: GuardedArrays) -> np.ndarray:
    address = device_address(value) if isinstance(value, np.ndarray) else int(value or 0)
    return np.array([memory.relocate(address)], np.uint64)


def _scalar(value: np.generic | np.ndarray, memory: GuardedArrays) -> np.ndarray:
    """The value's bytes; in a structure, eight that form an address of an array are an address."""
    data = np.frombuffer(value.tobytes(), np.uint8).copy()
    if _kind(value.dtype) == "s":
        words = data[: data.size // 8 * 8].view(np.uint64)
        words[:] = [memory.relocate(int(word)) for word in words]
    return data
