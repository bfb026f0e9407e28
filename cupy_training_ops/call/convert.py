# SPDX-License-Identifier: MIT
"""Attributes and host inputs in their checked, frozen form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ..declare.declaration import Declaration
from ..declare.schema import REQUIRED, Attribute, Input
from ..dtypes import BOOL, FLOAT64, Dtype, dtype_names, to_dtype
from ..errors import ArgumentError, DtypeError, OpError, pass_on, refuse, shown
from . import checks
from .keys import NUMBERS


def frozen_attributes(op: Declaration, given: Mapping[str, object]) -> dict[str, object]:
    """Attribute values in their checked, frozen form; every error names the attribute."""
    known = {attribute.name for attribute in op.attributes}
    for name in given:
        if name not in known:
            checks.unknown(op, name)
    values: dict[str, object] = {}
    for attribute in op.attributes:
        value = given.get(attribute.name, attribute.default)
        if value is REQUIRED:
            refuse(op.name, attribute.name, "a value: it is required", "none")
        frozen = convert_value(op.name, attribute, value)
        _check_dtype(op.name, attribute.name, frozen, op.types.get(attribute.type))
        values[attribute.name] = frozen
    return values


def convert_value(op: str, declared: Attribute | Input, value: object) -> object:
    """A value in its frozen form, or an error that names operator and argument."""
    try:
        return declared.convert(value) if declared.convert else value
    except OpError as error:
        raise type(error)(f"{op}: {declared.name}: {error}") from None
    except MemoryError:
        raise
    except Exception as error:  # of the value's own class
        pass_on(error)
        cause = f"{type(error).__name__}: {error}"
        raise ArgumentError(f"{op}: {declared.name}: cannot be read: {cause}") from None


class Freezing:
    """Freezes a value that changes from call to call, and sees that its type holds it.

    A number like the one before gives the same object, by which all that follows from it is known.
    """

    def __init__(self, op: str, declared: Input) -> None:
        self._op, self._declared, self._holder = op, declared, _holder(declared.type)
        self._last: tuple[object, object] = (object(), None)

    def __call__(self, value: object) -> object:
        known, frozen = self._last  # once: another thread may put its own there
        if value is known or (type(value) is type(known) and value and value == known):
            return frozen  # no zero: it may have another sign
        frozen = convert_value(self._op, self._declared, value)
        self._refuse_larger(frozen)
        if type(value) in NUMBERS:  # they stay what they are
            self._last = value, frozen
        return frozen

    def _refuse_larger(self, frozen: object) -> None:
        if self._holder is None:
            return
        for number in frozen if isinstance(frozen, tuple) else (frozen,):
            if not self._holder.holds(number):
                refuse(self._op, self._declared.name, self._holder.words, shown(number))


class _Holder(NamedTuple):
    """The numbers that a type has room for; infinities and NaN of a real type are among them."""

    words: str
    dtype: Dtype
    least: float
    most: float

    def holds(self, number: Any) -> bool:
        if self.least <= number <= self.most:
            return True
        if not isinstance(number, float) or self.dtype.kind in "iu":
            return False
        with np.errstate(over="ignore"):
            return not math.isfinite(number) or math.isfinite(self.dtype.type(number))


def _holder(declared: str) -> _Holder | None:
    """Make the holder of a declared type; of a type variable, that of core/either.cuh."""
    try:
        dtype = to_dtype(declared)
    except DtypeError:
        return _Holder("a real number or an integer of 64 bits", FLOAT64, -(2**63), 2**64 - 1)
    if dtype.kind in "iu":
        whole = np.iinfo(dtype)
        return _Holder(f"a number that {declared} holds", dtype, whole.min, whole.max)
    if dtype in (BOOL, FLOAT64):
        return None
    most = float(ml_dtypes.finfo(dtype).max)
    return _Holder(f"a number that {declared} holds", dtype, -most, most)


def _check_dtype(op: str, name: str, frozen: Any, allowed: Sequence[Dtype] | None) -> None:
    """An attribute that binds a type variable holds a dtype that the variable may be."""
    if allowed and frozen is not None and frozen not in allowed:
        expected, got = dtype_names(allowed), dtype_names([frozen])
        raise DtypeError(f"{op}: {name}: expected {expected}, got {got}")


def is_number(value: object) -> bool:
    """Return True if a value of an "either" input is a number, or a few, and no array."""
    return isinstance(value, int | float | np.generic | tuple | list)
