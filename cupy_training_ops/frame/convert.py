# SPDX-License-Identifier: MIT
"""Attributes and host inputs in their checked, frozen form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ..dtypes import Dtype, dtype_names
from ..errors import DtypeError, OpError, refuse
from ..schema import REQUIRED, Attribute, Input, Types


class Declaration(Protocol):
    """The part of an operator's class that values are checked against."""

    @property
    def name(self) -> str: ...

    @property
    def attributes(self) -> tuple[Attribute, ...]: ...

    @property
    def types(self) -> Types: ...


def frozen_attributes(cls: Declaration, given: Mapping[str, Any]) -> dict[str, Any]:
    """Attribute values in their checked, frozen form; every error names the attribute."""
    known = {attribute.name for attribute in cls.attributes}
    for name in given:
        if name not in known:
            refuse(cls.name, name, f"an attribute among {sorted(known)}", "an unknown one")
    values: dict[str, Any] = {}
    for attribute in cls.attributes:
        value = given.get(attribute.name, attribute.default)
        if value is REQUIRED:
            refuse(cls.name, attribute.name, "a value: it is required", "none")
        values[attribute.name] = converted(cls, attribute, value)
    return values


def converted(cls: Declaration, declared: Attribute | Input, value: Any) -> Any:
    """A value in its frozen form, or an error that names operator and argument."""
    try:
        frozen = declared.convert(value) if declared.convert else value
    except OpError as error:
        raise type(error)(f"{cls.name}: {declared.name}: {error}") from None
    allowed = cls.types.get(declared.type) if isinstance(declared, Attribute) else None
    if allowed and frozen is not None and frozen not in allowed:
        raise _wrong_dtype(cls, declared, frozen, allowed)
    return frozen


def _wrong_dtype(
    cls: Declaration, declared: Attribute | Input, frozen: Dtype, allowed: tuple[Dtype, ...]
) -> DtypeError:
    expected, got = dtype_names(allowed), dtype_names([frozen])
    return DtypeError(f"{cls.name}: {declared.name}: expected {expected}, got {got}")
