# SPDX-License-Identifier: MIT
"""Attributes and host inputs in their checked, frozen form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..dtypes import Dtype, dtype_names
from ..errors import ArgumentError, DtypeError, OpError, refuse
from ..schema import REQUIRED, Attribute, Input, Types
from . import checks


class Declared(checks.Declared, Protocol):
    """What attributes need of an operator class."""

    types: Types


def frozen_attributes(op: Declared, given: Mapping[str, object]) -> dict[str, object]:
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
        frozen = converted(op.name, attribute, value)
        _check_dtype(op.name, attribute.name, frozen, op.types.get(attribute.type))
        values[attribute.name] = frozen
    return values


def converted(op: str, declared: Attribute | Input, value: object) -> object:
    """A value in its frozen form, or an error that names operator and argument."""
    try:
        return declared.convert(value) if declared.convert else value
    except OpError as error:
        raise type(error)(f"{op}: {declared.name}: {error}") from None
    except MemoryError:
        raise
    except Exception as error:  # of the value's own class
        cause = f"{type(error).__name__}: {error}"
        raise ArgumentError(f"{op}: {declared.name}: cannot be read: {cause}") from error


def _check_dtype(op: str, name: str, frozen: Any, allowed: Sequence[Dtype] | None) -> None:
    """An attribute that binds a type variable holds a dtype that the variable may be."""
    if allowed and frozen is not None and frozen not in allowed:
        expected, got = dtype_names(allowed), dtype_names([frozen])
        raise DtypeError(f"{op}: {name}: expected {expected}, got {got}")
