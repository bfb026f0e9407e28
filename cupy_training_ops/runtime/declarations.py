# SPDX-License-Identifier: MIT
"""What a CUDA text declares: constants, structs and type aliases, each under its full name.

Values and types stay tokens until somebody asks for them, because they depend on the slots that a
kernel is compiled with. Bodies of functions are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..errors import CompileError
from .tokens import COMMENT, Tokens, after_angle, after_bracket, opens, split, tokens_of

Path = tuple[str, ...]  # the enclosing namespaces and structs, then the name

_DIRECTIVE = re.compile(r"^[ \t]*#((?:[^\n\\]|\\.)*)", re.MULTILINE | re.DOTALL)
_DEFINE = re.compile(r"\s*define\s+(\w+)[ \t]+(\S.*)", re.DOTALL)
_ALIGNAS = ("alignas", "__align__")
_NO_CALL = (*_ALIGNAS, "decltype")
_STORAGE = ("static", "inline", "mutable", "constexpr", "__device__")
_NOT_OF_A_TYPE = {*_STORAGE, "const", "volatile", "__restrict__", "struct", "typename"}


@dataclass(frozen=True)
class TemplateParameter:
    """`class E` or `int N`."""

    name: str
    is_type: bool


@dataclass(frozen=True)
class Constant:
    """`constexpr <c_type> <name> = <value>`."""

    path: Path
    c_type: Tokens
    value: Tokens
    parameters: tuple[TemplateParameter, ...] = ()


@dataclass(frozen=True)
class Alias:
    """`using <name> = <target>`."""

    path: Path
    target: Tokens
    parameters: tuple[TemplateParameter, ...] = ()


@dataclass(frozen=True)
class UsingName:
    """`using <target>`: a name of another scope in this one."""

    path: Path
    target: Path


@dataclass(frozen=True)
class Member:
    """One data member of a struct: `c_type name[extent][extent]`."""

    name: str
    c_type: Tokens
    pointer: bool = False
    extents: tuple[Tokens, ...] = ()
    alignment: Tokens = ()


@dataclass(frozen=True)
class Struct:
    """A struct; `refused` says why its layout is not known from the text, if it is not."""

    path: Path
    members: tuple[Member, ...]
    parameters: tuple[TemplateParameter, ...] = ()
    alignment: Tokens = ()
    refused: str = ""


Declaration = Constant | Alias | UsingName | Struct


class Declarations:
    """All declarations of a text, found by name."""

    def __init__(self, code: str) -> None:
        self.defaults: dict[str, Tokens] = {}  # of macros
        self._declared: dict[Path, list[Declaration]] = {}
        self._opened: dict[Path, list[Path]] = {}  # `using namespace`, by scope
        text = _DIRECTIVE.sub(self._directive, COMMENT.sub(" ", code))
        _Reader(tokens_of(text), self).read_scope(())

    def _directive(self, match: re.Match[str]) -> str:
        define = _DEFINE.fullmatch(match[1])
        if define:  # the first one counts: #ifndef stands before the others
            self.defaults.setdefault(define[1], tokens_of(define[2]))
        return " "

    def add(self, declaration: Declaration) -> None:
        """Take one declaration; it may be repeated, as that of a slot's type is."""
        same = self._declared.setdefault(declaration.path, [])
        if declaration not in same:
            same.append(declaration)

    def open_namespace(self, scope: Path, namespace: Path) -> None:
        """Take `using namespace`."""
        self._opened.setdefault(scope, []).append(namespace)

    def find(self, name: Path, scope: Path, *kinds: type) -> Declaration | None:
        """What a name means in a scope, as C++ has it; an error where that is ambiguous.

        A name that is not visible there may stand in any other scope, under the same last part.
        """
        found = self._visible(name, scope, kinds)
        found = found or self._anywhere(name, kinds) or self._anywhere(name[-1:], kinds)
        if len(found) > 1:
            places = ", ".join(dict.fromkeys("::".join(d.path) for d in found))
            raise CompileError(f"{'::'.join(name)} has several definitions: {places}")
        return found[0] if found else None

    def _visible(self, name: Path, scope: Path, kinds: tuple[type, ...]) -> list[Declaration]:
        for depth in range(len(scope), -1, -1):
            found = self._in(name, scope[:depth], kinds, set())
            if found:
                return found
        return []

    def _in(
        self, name: Path, scope: Path, kinds: tuple[type, ...], seen: set[Path]
    ) -> list[Declaration]:
        """In one scope, or else in the namespaces that are opened there."""
        seen.add(scope)
        found: list[Declaration] = []
        for declaration in self._declared.get((*scope, *name), ()):
            if isinstance(declaration, UsingName):
                found += self._visible(declaration.target, scope, kinds)
            elif isinstance(declaration, kinds):
                found.append(declaration)
        for opened in () if found else self._opened.get(scope, ()):
            for depth in range(len(scope), -1, -1):
                inner = (*scope[:depth], *opened)
                if inner not in seen:
                    found += self._in(name, inner, kinds, seen)
        return found

    def _anywhere(self, name: Path, kinds: tuple[type, ...]) -> list[Declaration]:
        paths = [path for path in self._declared if path[-len(name) :] == name]
        return [d for path in paths for d in self._declared[path] if isinstance(d, kinds)]


class _Reader:
    """Walks over the tokens once, scope by scope."""

    def __init__(self, tokens: Tokens, found: Declarations) -> None:
        self._tokens = tokens
        self._at = 0
        self._found = found

    def read_scope(self, scope: Path) -> tuple[Member, ...]:
        """All up to the brace that closes the scope; returns the data members of a struct."""
        members: list[Member] = []
        while self._peek() not in ("}", ""):
            members += self._read_declaration(scope, self._template_parameters())
        self._at += 1
        return tuple(members)

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ""

    def _read_declaration(
        self, scope: Path, parameters: tuple[TemplateParameter, ...]
    ) -> tuple[Member, ...]:
        first = self._peek()
        if first == ";" or self._peek(1) == ":":  # `public:`
            self._at += 1 if first == ";" else 2
        elif first == "namespace" or (first == "inline" and self._peek(1) == "namespace"):
            self._read_namespace(scope)
        elif first == "extern" and self._peek(2) == "{":
            self._at += 3
            self.read_scope(scope)
        elif first == "using":
            self._read_using(scope, parameters)
        elif first == "enum":
            self._statement()
        elif first in ("struct", "class", "union") and self._has_body():
            return self._read_struct(scope, parameters)
        else:
            return self._read_variables(scope, parameters)
        return ()

    def _read_namespace(self, scope: Path) -> None:
        head = self._up_to("{", ";")
        self._at += 1
        if "=" not in head:
            words = ("::", "inline", "namespace")
            self.read_scope((*scope, *(token for token in head if token not in words)))

    def _read_using(self, scope: Path, parameters: tuple[TemplateParameter, ...]) -> None:
        _, *rest = self._statement()
        names = tuple(token for token in rest if token != "::")
        if rest[0] == "namespace":
            self._found.open_namespace(scope, names[1:])
        elif rest[1:2] == ["="]:
            self._found.add(Alias((*scope, rest[0]), tuple(rest[2:]), parameters))
        else:
            self._found.add(UsingName((*scope, names[-1]), names))

    def _has_body(self) -> bool:
        """Whether this defines a struct and does not only name one."""
        start = self._at
        self._up_to("{", ";", "=")
        end, self._at = self._peek(), start
        return end == "{"

    def _read_struct(
        self, scope: Path, parameters: tuple[TemplateParameter, ...]
    ) -> tuple[Member, ...]:
        refused = "is a union" if self._peek() == "union" else ""
        self._at += 1
        alignment = self._alignment()
        head = self._up_to("{")
        name = head[0] if head else ""
        if head[1:] not in ((), ("final",)):
            refused = "is specialised" if head[1] == "<" else "is derived from another"
        self._at += 1
        members = self.read_scope((*scope, name))
        self._found.add(Struct((*scope, name), members, parameters, alignment, refused))
        variables = self._statement()  # of this type, between its brace and the semicolon
        if not name:
            return (Member("", ("an anonymous struct",)),)
        return tuple(_members((name, *variables), ())) if variables else ()

    def _alignment(self) -> Tokens:
        """The argument of `alignas`, if one stands here."""
        if self._peek() not in _ALIGNAS:
            return ()
        start = self._at + 2
        self._at = after_bracket(self._tokens, self._at + 1)
        return self._tokens[start : self._at - 1]

    def _read_variables(
        self, scope: Path, parameters: tuple[TemplateParameter, ...]
    ) -> tuple[Member, ...]:
        """Data members or constants; a function is skipped."""
        alignment = self._alignment()
        if self._is_function():
            self._skip_function()
            return ()
        statement = self._statement()
        if "constexpr" in statement:
            for member, value in _variables(statement):
                if not member.extents:
                    path = (*scope, member.name)
                    self._found.add(Constant(path, member.c_type, value, parameters))
        elif "static" not in statement:
            return tuple(_members(statement, alignment))
        return ()

    def _template_parameters(self) -> tuple[TemplateParameter, ...]:
        """Those of every `template <...>` that stands here."""
        parameters: tuple[TemplateParameter, ...] = ()
        while self._peek() == "template":
            end = after_angle(self._tokens, self._at + 1) or len(self._tokens)
            inside = self._tokens[self._at + 2 : end - 1]
            parameters += tuple(_template_parameter(piece) for piece in split(inside) if piece)
            self._at = end
        return parameters

    def _is_function(self) -> bool:
        """Whether a parameter list comes before the value or the end of the declaration."""
        at = self._at
        while at < len(self._tokens) and (token := self._tokens[at]) not in (";", "=", "{", "}"):
            if token == "operator" or (token == "(" and self._tokens[at - 1] not in _NO_CALL):
                return True
            end = after_angle(self._tokens, at) if token == "<" else None
            if opens(token):
                end = after_bracket(self._tokens, at)
            at = end or at + 1
        return False

    def _skip_function(self) -> None:
        """Past the semicolon or the body; a constructor has braces before its body, too."""
        while (token := self._peek()) not in (";", ""):
            self._at = after_bracket(self._tokens, self._at) if opens(token) else self._at + 1
            if token == "{" and self._peek() not in (",", "{"):
                return
        self._at += 1

    def _statement(self) -> Tokens:
        """The tokens before the next semicolon that stands in no bracket, which is passed."""
        statement = self._up_to(";")
        self._at += 1
        return statement

    def _up_to(self, *ends: str) -> Tokens:
        start = self._at
        while (token := self._peek()) not in (*ends, ""):
            self._at = after_bracket(self._tokens, self._at) if opens(token) else self._at + 1
        return self._tokens[start : self._at]


def _template_parameter(tokens: Tokens) -> TemplateParameter:
    """`class E`, `int N`, `int N = 4`, `class... Es`."""
    head = tokens[: tokens.index("=")] if "=" in tokens else tokens
    return TemplateParameter(head[-1], head[0] in ("class", "typename"))


def _members(statement: Tokens, alignment: Tokens) -> Iterator[Member]:
    for member, _ in _variables(statement):
        yield replace(member, alignment=alignment)


def _variables(statement: Tokens) -> Iterator[tuple[Member, Tokens]]:
    """The variables of one declaration, each with its value."""
    c_type: Tokens = ()
    for piece in split(statement):
        end = next((i for i, token in enumerate(piece) if token in ("=", "{", "[")), len(piece))
        *before, name = (token for token in piece[:end] if token not in _NOT_OF_A_TYPE)
        stars = len(before)
        while stars and before[stars - 1] == "*":
            stars -= 1
        c_type = c_type or tuple(before[:stars])
        extents = []
        while piece[end : end + 1] == ("[",):
            after = after_bracket(piece, end)
            extents.append(piece[end + 1 : after - 1])
            end = after
        value = piece[end + 1 :] if piece[end : end + 1] == ("=",) else piece[end + 1 : -1]
        yield Member(name, c_type, stars < len(before), tuple(extents)), value
