# SPDX-License-Identifier: MIT
"""Values that are hardly ever what an argument expects."""

from __future__ import annotations

import decimal
import fractions
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from foreign import Foreign
from runs import gpu_reason

from cupy_training_ops.dtypes import ELEMENT_TYPES

DTYPES = [element.dtype for element in ELEMENT_TYPES]
ODD_DTYPES = [
    np.dtype(name) for name in (">f4", ">i8", "g", "G", "O", "S3", "U2", "V2", "M8[s]", "f4,i4")
] + [np.dtype(ml_dtypes.float8_e5m2), np.dtype(ml_dtypes.int4)]  # fmt: skip


class UnwillingArray:
    """An array of another library that fails in its own way, at either question."""

    def __init__(self, error: Exception, asked: str) -> None:
        self._error = error
        self._asked = asked

    def __repr__(self) -> str:
        return f"UnwillingArray({self._error!r}, {self._asked!r})"

    def __dlpack_device__(self) -> tuple[int, int]:
        if self._asked == "where":
            raise self._error
        return (1, 0)

    def __dlpack__(self, **_: object) -> object:
        raise self._error


class LyingArray:
    """An array of another library whose answers are no answers."""

    def __init__(self, device: object, capsule: object) -> None:
        self._device = device
        self._capsule = capsule

    def __repr__(self) -> str:
        return f"LyingArray({self._device!r}, {self._capsule!r})"

    def __dlpack_device__(self) -> object:
        return self._device

    def __dlpack__(self, **_: object) -> object:
        return self._capsule


class DeviceArray:
    """Says that its memory is a GPU's."""

    def __init__(self, interface: object) -> None:
        self.__cuda_array_interface__ = interface

    def __repr__(self) -> str:
        return f"DeviceArray({self.__cuda_array_interface__!r})"


class OddError(Exception):
    """Of no family that anybody expects."""


ERRORS = [
    error("it does not want to")
    for error in (AttributeError, BufferError, KeyError, OddError, OSError, RuntimeError, TypeError,
                  ValueError)
]  # fmt: skip
INTERFACE = {"shape": (8,), "typestr": "<f4", "data": (4096, False), "version": 3}
FOREIGN: list[Any] = [
    *(UnwillingArray(error, asked) for error in ERRORS for asked in ("where", "for memory")),
    LyingArray((1, 0), 5), LyingArray((99, 0), None), LyingArray(None, None),
    LyingArray("cpu", None), DeviceArray, Foreign,
]  # fmt: skip
if gpu_reason() is not None:  # a GPU would look for that memory
    FOREIGN += [
        LyingArray((2, 0), 5), DeviceArray(INTERFACE), DeviceArray(5), DeviceArray({}),
        DeviceArray({**INTERFACE, "typestr": "?!"}),
    ]  # fmt: skip

NUMBERS: list[Any] = [
    0, 1, -1, 2, 7, 2**31, -(2**31) - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63) - 1,
    10**400, 0.0, -0.0, 0.5, 1e-45, 1e39, 1e308, float("inf"), float("-inf"), float("nan"), True,
    False, 1j, np.int8(-1), np.int64(3), np.uint64(2**63), np.float16(0.5), np.float32(2),
    np.float64(0.25), np.longdouble(1.5), np.bool_(True), ml_dtypes.bfloat16(0.5),
    fractions.Fraction(1, 3), decimal.Decimal("0.1"),
]  # fmt: skip
OTHERS: list[Any] = [
    None, "text", "", "float32", b"bytes", bytearray(b"1"), memoryview(b"12"), ..., NotImplemented,
    object, int, np.ndarray, np.float32, slice(2), range(3), {}, {1}, {"a": 1}, frozenset(),
    lambda: 1, np.str_("a"), np.datetime64(1, "s"), np.dtype("f4"), [], (), [[]], [1], [1, 2.5],
    (1, "a"), [None], [[1], [2, 3]], ("a", "f4", -1), [("a", "f4", -1)], list(range(5000)),
]  # fmt: skip
ARRAYS: list[Any] = [
    np.array(1), np.array(0.5), np.array([2]), np.array([True]), np.zeros((2, 2)), np.zeros(0),
    np.array([1, 2], object), np.array(["a"]), np.array([1, 2], ">i8"), np.ones(4000),
    np.array([1j]), np.array([2**63], np.uint64), np.ma.masked_array([1, 2], [0, 1]),
    np.zeros(3, "f4,i4"),
]  # fmt: skip
MAKERS: list[Callable[[], Any]] = [lambda: (x for x in (1, 2)), lambda: iter([1]), object]


def anything(rng: np.random.Generator) -> Any:
    """One of all these."""
    pools = (NUMBERS, OTHERS, ARRAYS, FOREIGN, [make() for make in MAKERS])
    pool = pools[rng.choice(5, p=(0.3, 0.3, 0.15, 0.2, 0.05))]
    return pool[rng.integers(len(pool))]


def shown(value: Any) -> str:
    """A value in a line for people."""
    if isinstance(value, np.ndarray):
        return f"{type(value).__name__} {value.dtype} {value.shape}"
    if isinstance(value, list | tuple) and len(value) > 6:
        return f"{type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) < 90 else text[:90] + "..."
