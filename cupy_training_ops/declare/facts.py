# SPDX-License-Identifier: MIT
"""Facts that plans and kernels share, declared in Python: numbers, slots, and structs.

A module of facts has numbers in capitals, and structs. A dict of numbers is one that depends on the
bytes of a type. `scripts/generate_headers.py` writes the same for CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..dtypes import Dtype, element_type
from ..errors import CompileError


class Slot(int):
    """The default of a number that each compilation of a kernel may define: -DCTO_WORDS=2."""


class TypeSlot(str):
    """The default of a C type that each compilation of a kernel may define: -DCTO_T=__half."""


@dataclass(frozen=True)
class Count:
    """An extent of a field: the template parameter `int <name>` of its struct, plus `more`."""

    name: str
    more: int = 0

    def __add__(self, more: int) -> Count:
        return Count(self.name, self.more + more)

    def __str__(self) -> str:
        return f"{self.name} + {self.more}" if self.more else self.name


@dataclass(frozen=True)
class CType:
    """The type of a struct's field, or an array of it: i32[2] is int[2].

    dtype: None for the type that is the struct's template parameter.
    """

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
    """A C struct; `of(argument)` is its layout, for one template argument if it is a template."""

    def __init__(
        self, name: str, parameter: Count | CType | None = None, /, **fields: CType
    ) -> None:
        """name: in C. parameter: of a template, Count for `int N`, CType for `class T`. fields: in
        this order."""
        self.name = name
        self.parameter = parameter
        self.fields: Mapping[str, CType] = fields
        self._layouts: dict[Argument | None, Layout] = {}  # by template argument

    def __getitem__(self, extent: int | Count) -> CType:
        """Return the type of a field that is an array of this struct."""
        return self.one[extent]

    @property
    def one(self) -> CType:
        """The type of a field that is one of this struct."""
        return CType(self.name, self.of().dtype)

    def of(self, argument: Argument | None = None) -> Layout:
        """Return the layout; argument: of the template, None if the struct is none."""
        if argument not in self._layouts:
            fields = [(name, *_field_type(field, argument)) for name, field in self.fields.items()]
            spelled = element_type(argument).c_type if isinstance(argument, np.dtype) else argument
            name = self.name if argument is None else f"{self.name}<{spelled}>"
            dtype = np.dtype(np.dtype(fields, align=True), metadata={"struct": name})
            self._layouts[argument] = Layout(name, dtype)
        return self._layouts[argument]


def _field_type(field: CType, argument: Any) -> tuple[Dtype, tuple[int, ...]]:
    """Return a field's (dtype, extents) for a template argument, which replaces T or N."""
    extents = (argument + n.more if isinstance(n, Count) else n for n in field.extents)
    return argument if field.dtype is None else field.dtype, tuple(extents)


class Layout:
    """A struct's dtype, aligned as in C, and its name there, such as "Pointers<8>"."""

    def __init__(self, name: str, dtype: Dtype) -> None:
        self.name = name
        self.dtype = dtype
        self._plain = {field: _plain(dtype[field]) for field in dtype.names or ()}

    def fill(self, fields: Mapping[str, Any]) -> np.void:
        """Return a struct with these values, by name of the field; reals are rounded.

        CompileError for other fields, or an integer or a shape that does not fit.
        """
        if self._plain.keys() != fields.keys():
            odd = ", ".join(sorted(self._plain.keys() ^ fields.keys()))
            raise CompileError(f"{self.name}: fields differ from those declared: {odd}")
        values = []
        for field, (types, low, high) in self._plain.items():
            value = fields[field]
            is_plain = type(value) in types and low <= value <= high
            values.append(value if is_plain else self._exact(field, np.asarray(value)))
        struct = np.zeros((), self.dtype)
        struct[()] = tuple(values)
        return struct[()]  # type: ignore[return-value]

    def _exact(self, name: str, array: Any) -> object:
        """Return an array in the dtype of field `name`; CompileError if it does not fit.

        A float field takes any real number, rounded.
        """
        field = self.dtype[name]
        base, kinds = field.base, {"i": "biu", "u": "biu", "f": "biuf"}.get(field.base.kind, "")
        if array.shape == field.shape:
            if array.dtype == base:
                return array
            held = array.astype(base) if array.dtype.kind in kinds else None
            if held is not None and (base.kind == "f" or (held == array).all()):
                return held
        raise CompileError(
            f"{self.name}: field {name} is {_spell(field)}, "
            f"the plan gives {_spell(array.dtype, array.shape)}"
        )


def struct_name(dtype: Dtype) -> str:
    """Return the C name of a struct's dtype, which `Struct.of` put there; else the dtype's."""
    metadata: Mapping[str, object] = dtype.metadata or {}
    return str(metadata.get("struct", dtype))


def _plain(field: Dtype) -> tuple[tuple[type, ...], float, float]:
    """Return (Python types, least, most): such values surely fit a struct's field of this dtype.

    No types for an array.
    """
    if field.kind == "b":
        return (bool,), 0, 1
    if field.kind in "iu":
        limits = np.iinfo(field)
        return (int, bool), int(limits.min), int(limits.max)
    return ((float,) if field.kind == "f" else ()), -math.inf, math.inf


def _spell(dtype: Dtype, shape: tuple[int, ...] = ()) -> str:
    """Return a type for messages: a struct's C name or a dtype, with extents, "float64[2]"."""
    extents = "".join(f"[{extent}]" for extent in dtype.shape or shape)
    return f"{struct_name(dtype.base) if dtype.base.names else dtype.base}{extents}"
