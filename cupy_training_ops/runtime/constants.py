# SPDX-License-Identifier: MIT
"""Integer expressions of C++, as constants and array extents are written in."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import NoReturn

from ..errors import CompileError
from .tokens import Tokens, after_bracket


def _quotient(a: int, b: int) -> int:
    """Rounded towards zero, as in C."""
    magnitude = abs(a) // abs(b)
    return magnitude if (a < 0) == (b < 0) else -magnitude


_BINARY: dict[str, tuple[int, Callable[[int, int], int]]] = {  # with how tightly it binds
    "||": (1, lambda a, b: bool(a) or bool(b)),
    "&&": (2, lambda a, b: bool(a) and bool(b)),
    "|": (3, operator.or_),
    "^": (4, operator.xor),
    "&": (5, operator.and_),
    "==": (6, operator.eq),
    "!=": (6, operator.ne),
    "<": (7, operator.lt),
    ">": (7, operator.gt),
    "<=": (7, operator.le),
    ">=": (7, operator.ge),
    "<<": (8, operator.lshift),
    ">>": (8, operator.rshift),
    "+": (9, operator.add),
    "-": (9, operator.sub),
    "*": (10, operator.mul),
    "/": (10, _quotient),
    "%": (10, lambda a, b: a - b * _quotient(a, b)),
}
_UNARY: dict[str, Callable[[int], int]] = {
    "-": operator.neg,
    "+": operator.pos,
    "~": operator.invert,
    "!": operator.not_,
}


class Expression:
    """An expression of integers, named constants and sizeof(type)."""

    def __init__(
        self,
        tokens: Tokens,
        value_of: Callable[[tuple[str, ...]], int],
        size_of: Callable[[Tokens], int],
    ) -> None:
        self._tokens = tokens
        self._at = 0
        self._value_of = value_of
        self._size_of = size_of

    def value(self) -> int:
        """What the whole expression is."""
        value = self._conditional()
        if self._at < len(self._tokens):
            self._refuse()
        return int(value)

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _expect(self, token: str) -> None:
        if self._take() != token:
            self._refuse()

    def _refuse(self) -> NoReturn:
        text = " ".join(self._tokens)
        raise CompileError(f"{text or 'nothing'} is no expression of integers that is understood")

    def _conditional(self) -> int:
        condition = self._binary(1)
        if self._peek() != "?":
            return condition
        self._take()
        if_true = self._conditional()
        self._expect(":")
        if_false = self._conditional()
        return if_true if condition else if_false

    def _binary(self, least: int) -> int:
        """Operators that bind at least so tightly, from left to right."""
        value = self._unary()
        while (known := _BINARY.get(self._peek())) and known[0] >= least:
            self._take()
            right = self._binary(known[0] + 1)
            try:
                value = known[1](value, right)
            except (ArithmeticError, ValueError):
                self._refuse()
        return value

    def _unary(self) -> int:
        if self._peek() in _UNARY:
            return _UNARY[self._take()](self._unary())
        return self._primary()

    def _primary(self) -> int:
        token = self._peek()
        if token == "(":
            self._take()
            value = self._conditional()
            self._expect(")")
            return value
        if token == "sizeof":
            start = self._at + 2
            if self._tokens[start - 1 : start] != ("(",):
                self._refuse()
            self._at = after_bracket(self._tokens, start - 1)
            return self._size_of(self._tokens[start : self._at - 1])
        if token in ("true", "false"):
            return self._take() == "true"
        if token[:1].isdigit():
            return self._literal(self._take())
        return self._value_of(self._name())

    def _literal(self, token: str) -> int:
        digits = token.replace("'", "").rstrip("uUlL")
        try:
            octal = len(digits) > 1 and digits.isdigit() and digits[0] == "0"
            return int(digits, 8 if octal else 0)
        except ValueError:
            self._refuse()

    def _name(self) -> tuple[str, ...]:
        if self._peek() == "::":
            self._take()
        names = [self._take()]
        while self._peek() == "::":
            self._take()
            names.append(self._take())
        if not all(name.isidentifier() for name in names):
            self._refuse()
        return tuple(names)
