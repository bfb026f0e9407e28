# SPDX-License-Identifier: MIT
"""Facts that plans and kernels share, declared in Python: numbers, slots, and structs.

A module of facts has numbers in capitals, and structs. A dict of numbers is one that depends on the
bytes of a type. `scripts/generate_headers.py` writes the same for CUDA.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..dtypes import Dtype, element_type
from ..errors import CompileError


class Slot(int):
    """A number that some kernels are compiled with otherwise; this one is the default."""


@dataclass(frozen=True)
class Count:
    """A template parameter of a struct, `int <name>`, or so many more than it."""

    name: str
    more: int = 0

    def __add__(self, more: int) -> Count:
        return Count(self.name, self.more + more)

    def __str__(self) -> str:
        return f"{self.name} + {self.more}" if self.more else self.name


@dataclass(frozen=True)
class CType:
    """A type, or an array of it; without a dtype it is a struct's template parameter."""

    name: str  # in C
    dtype: Dtype | None = None
    extents: tuple[int | Count, ...] = ()

    def __getitem__(self, extent: int | Count) -> CType:
        return replace(self, extents=(*self.extents, extent))


def _scalar(name: str, dtype: str) -> CType:
    return CType(name, np.dtype(dtype))


i32, u32 = _scalar("int", "i4"), _scalar("unsigned int", "u4")
i64, u64 = _scalar("long long", "i8"), _scalar("unsigned long long", "u8")
flag, double = _scalar("bool", "?"), _scalar("double", "f8")
address = _scalar("void*", "u8")

Argument = int | Dtype  # of a template parameter


class Struct:
    """A struct with these fields in this order; with a template parameter, one for each argument.

    What has the layout of one argument is `struct.of(argument)`.
    """

    def __init__(
        self, name: str, parameter: Count | CType | None = None, /, **fields: CType
    ) -> None:
        self.name = name
        self.parameter = parameter
        self.fields: Mapping[str, CType] = fields
        self._layouts: dict[Argument | None, Dtype] = {}

    def __getitem__(self, extent: int | Count) -> CType:
        """An array of it, as a field."""
        return self.one[extent]

    @property
    def one(self) -> CType:
        """A field of this type."""
        return CType(self.name, self.of())

    def of(self, argument: Argument | None = None) -> Dtype:
        """Its layout, with the name that C has for it in `metadata`."""
        if argument not in self._layouts:
            fields = [(name, *self._bound(field, argument)) for name, field in self.fields.items()]
            spelled = element_type(argument).c_type if isinstance(argument, np.dtype) else argument
            name = self.name if argument is None else f"{self.name}<{spelled}>"
            laid_out = np.dtype(fields, align=True)
            self._layouts[argument] = np.dtype(laid_out, metadata={"struct": name})
        return self._layouts[argument]

    def _bound(self, field: CType, argument: Any) -> tuple[Dtype, tuple[int, ...]]:
        extents = (argument + n.more if isinstance(n, Count) else n for n in field.extents)
        return argument if field.dtype is None else field.dtype, tuple(extents)


def struct_name(layout: Dtype) -> str:
    """The name that C has for the struct of a layout."""
    found: Mapping[str, Any] = layout.metadata or {}
    return str(found.get("struct", layout))


def filled(layout: Dtype, fields: Mapping[str, object]) -> np.void:
    """The struct of these values, each of which its field holds as it is; reals are rounded."""
    names = layout.names or ()
    if set(names) != fields.keys():
        odd = ", ".join(sorted(set(names) ^ fields.keys()))
        raise CompileError(f"{struct_name(layout)}: fields differ from those declared: {odd}")
    struct = np.zeros((), layout)
    for name, value in fields.items():
        struct[name] = _exact(layout, name, np.asarray(value))
    return struct[()]  # type: ignore[return-value]


def _exact(layout: Dtype, name: str, given: Any) -> Any:
    field = layout[name]
    kinds = {"b": "b", "i": "biu", "u": "biu", "f": "biuf"}.get(field.base.kind, "V")
    if given.shape == field.shape and given.dtype.kind in kinds:
        if field.base.kind == "V" and given.dtype == field.base:
            return given
        held = given.astype(field.base)
        if field.base.kind == "f" or (held == given).all():
            return held
    raise CompileError(
        f"{struct_name(layout)}: field {name} is {_spelled(field)}, "
        f"the plan gives {_spelled(given.dtype, given.shape)}"
    )


def _spelled(dtype: Dtype, shape: tuple[int, ...] = ()) -> str:
    """A type as C spells it, but for numbers."""
    extents = "".join(f"[{extent}]" for extent in dtype.shape or shape)
    return f"{struct_name(dtype.base) if dtype.base.names else dtype.base}{extents}"
