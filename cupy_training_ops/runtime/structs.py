# SPDX-License-Identifier: MIT
"""Values of constants and layouts of structs, for one binding of slots."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..dtypes import ELEMENT_TYPES, Dtype
from ..errors import CompileError
from .constants import Expression
from .declarations import Alias, Constant, Declarations, Member, Path, Struct, TemplateParameter
from .tokens import Tokens, split, tokens_of

SLOT = "CTO_"  # what the macros of slots begin with


class CType(NamedTuple):
    """A type as NumPy has it, and the alignment that C gives it."""

    dtype: Dtype
    alignment: int


def _fundamental() -> dict[str, CType]:
    """CUDA's own types by name; all of them are as aligned as they are large."""
    types = {row.c_type: row.dtype for row in ELEMENT_TYPES}
    integers = {"char": "i1", "short": "i2", "int": "i4", "long long": "i8"}
    types |= {name: np.dtype(code) for name, code in integers.items()}
    types |= {f"unsigned {name}": np.dtype(f"u{code[1]}") for name, code in integers.items()}
    types["uint4"] = np.dtype([(name, "u4") for name in "xyzw"])
    return {name: CType(dtype, dtype.itemsize) for name, dtype in types.items()}


_FUNDAMENTAL = _fundamental()
_POINTER = CType(np.dtype(np.uint64), 8)
_WORDS = frozenset(("unsigned", "signed", "char", "short", "int", "long"))
_QUALIFIERS = frozenset(("const", "volatile", "struct", "typename"))

Bound = Mapping[str, "int | CType"]  # template parameters to arguments


class Definitions:
    """What the declarations of a text mean where its slots have these values."""

    def __init__(self, declarations: Declarations, slots: Mapping[str, str]) -> None:
        self._declarations = declarations
        given = {SLOT + name: tokens_of(value) for name, value in slots.items()}
        self._macros = declarations.defaults | given
        self.constant = functools.cache(self._constant)
        self.struct = functools.cache(self._struct)

    def _constant(self, name: str) -> int:
        """The value of `constexpr int NAME`, which may be qualified."""
        return self._integer(tokens_of(name), (), {})

    def _struct(self, c_type: str) -> Dtype:
        """The layout of a struct, which may be qualified and have template arguments."""
        dtype = self._type(tokens_of(c_type), (), {}).dtype
        if dtype.names is None:
            raise CompileError(f"{c_type} is no struct")
        return dtype

    # ---- integers --------------------------------------------------------------------------------

    def _integer(self, tokens: Tokens, scope: Path, bound: Bound) -> int:
        def value_of(name: Path) -> int:
            return self._value_of(name, scope, bound)

        def size_of(c_type: Tokens) -> int:
            return self._type(c_type, scope, bound).dtype.itemsize

        return Expression(tokens, value_of, size_of).value()

    def _value_of(self, name: Path, scope: Path, bound: Bound) -> int:
        argument = bound.get(name[0]) if len(name) == 1 else None
        if isinstance(argument, int):
            return argument
        if name[0] in self._macros:
            return self._integer(self._macros[name[0]], scope, bound)
        found = self._declarations.find(name, scope, Constant)
        if not isinstance(found, Constant):
            raise CompileError(f"there is no constant {'::'.join(name)}")
        if found.parameters:
            raise CompileError(f"{'::'.join(name)} depends on template parameters")
        inner = found.path[:-1]
        value = self._integer(found.value, inner, bound if inner == scope else {})
        c_type = self._type(found.c_type, inner, {}).dtype
        fits = (
            value in (0, 1) if c_type.kind == "b" else c_type.kind in "iu" and _holds(c_type, value)
        )
        if not fits:
            raise CompileError(f"{'::'.join(name)} is {value}, which {c_type} cannot hold")
        return value

    # ---- types -----------------------------------------------------------------------------------

    def _type(self, tokens: Tokens, scope: Path, bound: Bound) -> CType:
        tokens = tuple(token for token in tokens if token not in _QUALIFIERS)
        if tokens[-1:] == ("*",):
            return _POINTER
        if tokens[-1:] == (">>",):
            tokens = (*tokens[:-1], ">", ">")
        if tokens and _WORDS.issuperset(tokens):
            return self._arithmetic(tokens)
        arguments = tokens.index("<") if "<" in tokens else len(tokens)
        name = tuple(token for token in tokens[:arguments] if token != "::")
        closed = "<" not in tokens or tokens[-1] == ">"
        if not (name and closed and all(part.isidentifier() for part in name)):
            self._refuse_type(tokens)
        return self._named(name, tokens[arguments + 1 : -1], scope, bound)

    def _named(self, name: Path, arguments: Tokens, scope: Path, bound: Bound) -> CType:
        argument = bound.get(name[0]) if len(name) == 1 else None
        if isinstance(argument, CType):
            return argument
        if name[0] in self._macros:
            return self._type(self._macros[name[0]], scope, bound)
        found = self._declarations.find(name, scope, Alias, Struct)
        if isinstance(found, Alias | Struct):
            inner = self._bound(found.path, found.parameters, arguments, scope, bound)
            if isinstance(found, Alias):
                return self._type(found.target, found.path[:-1], inner)
            return self._layout(found, inner)
        if name[-1] not in _FUNDAMENTAL:
            raise CompileError(f"there is no struct or type {'::'.join(name)}")
        return _FUNDAMENTAL[name[-1]]

    def _arithmetic(self, words: Tokens) -> CType:
        """`long long int unsigned` and the like."""
        kept = [word for word in words if word not in ("int", "signed", "unsigned")] or ["int"]
        name = " ".join(["unsigned", *kept] if "unsigned" in words else kept)
        return _FUNDAMENTAL[name] if name in _FUNDAMENTAL else self._refuse_type(words)

    def _refuse_type(self, tokens: Tokens) -> NoReturn:
        raise CompileError(f"{' '.join(tokens) or 'nothing'} is no type that is understood")

    def _bound(
        self,
        path: Path,
        parameters: tuple[TemplateParameter, ...],
        arguments: Tokens,
        scope: Path,
        bound: Bound,
    ) -> Bound:
        """Template parameters with what the arguments mean where they stand."""
        pieces = split(arguments) if arguments else []
        if len(pieces) != len(parameters):
            raise CompileError(f"{'::'.join(path)} takes {len(parameters)} template arguments")
        return {
            parameter.name: self._type(piece, scope, bound)
            if parameter.is_type
            else self._integer(piece, scope, bound)
            for parameter, piece in zip(parameters, pieces, strict=True)
        }

    def _layout(self, struct: Struct, bound: Bound) -> CType:
        """The members one after the other, each where its alignment allows it."""
        refused = struct.refused or ("" if struct.members else "has no members")
        if refused:
            raise CompileError(f"struct {'::'.join(struct.path)} {refused}")
        end, alignment = 0, self._alignment(struct.alignment, struct.path, bound)
        offsets: list[int] = []
        formats: list[Dtype] = []
        for member in struct.members:
            c_type, extents = self._member(member, struct.path, bound)
            alignment = max(alignment, c_type.alignment)
            offsets.append(_rounded_up(end, c_type.alignment))
            formats.append(np.dtype((c_type.dtype, extents)))
            end = offsets[-1] + formats[-1].itemsize
        layout: Any = {"names": [m.name for m in struct.members], "formats": formats}
        layout |= {"offsets": offsets, "itemsize": _rounded_up(end, alignment)}
        return CType(np.dtype(layout), alignment)

    def _member(self, member: Member, scope: Path, bound: Bound) -> tuple[CType, tuple[int, ...]]:
        c_type = _POINTER if member.pointer else self._type(member.c_type, scope, bound)
        least = self._alignment(member.alignment, scope, bound)
        extents = tuple(self._integer(extent, scope, bound) for extent in member.extents)
        return CType(c_type.dtype, max(least, c_type.alignment)), extents

    def _alignment(self, tokens: Tokens, scope: Path, bound: Bound) -> int:
        return self._integer(tokens, scope, bound) if tokens else 1


def _holds(c_type: Dtype, value: int) -> bool:
    limits = np.iinfo(c_type)
    return int(limits.min) <= value <= int(limits.max)


def _rounded_up(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
