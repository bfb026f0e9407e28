# SPDX-License-Identifier: MIT
"""CUDA text as tokens, and where brackets in it end."""

from __future__ import annotations

import re

from ..errors import CompileError

Tokens = tuple[str, ...]

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_TOKEN = re.compile(
    r"[A-Za-z_]\w*|\d[\w.']*|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'"
    r"|::|<<|>>|<=|>=|==|!=|&&|\|\||\S"
)
_CLOSING = {"(": ")", "[": "]", "{": "}"}


def tokens_of(text: str) -> Tokens:
    """The tokens of a text without comments and preprocessor lines."""
    return tuple(_TOKEN.findall(text))


def opens(token: str) -> bool:
    """Whether a token is a bracket that another one closes."""
    return token in _CLOSING


def after_bracket(tokens: Tokens, at: int) -> int:
    """The place after the bracket that closes the one at `at`."""
    opening, closing, depth = tokens[at], _CLOSING[tokens[at]], 0
    for i in range(at, len(tokens)):
        if tokens[i] == opening:
            depth += 1
        elif tokens[i] == closing:
            depth -= 1
            if depth == 0:
                return i + 1
    raise CompileError(f"{opening} is not closed")


def after_angle(tokens: Tokens, at: int) -> int | None:
    """The place after the `>` that closes the `<` at `at`; None where that `<` means less."""
    depth = 0
    while at < len(tokens) and tokens[at] not in (";", ")", "]", "}"):
        if opens(tokens[at]):
            at = after_bracket(tokens, at)
            continue
        depth += {"<": 1, ">": -1, ">>": -2}.get(tokens[at], 0)
        at += 1
        if depth <= 0:
            return at
    return None


def split(tokens: Tokens) -> list[Tokens]:
    """The pieces between commas that stand in no bracket."""
    pieces, start, at = [], 0, 0
    while at < len(tokens):
        if opens(tokens[at]):
            at = after_bracket(tokens, at)
        elif tokens[at] == "<" and (end := after_angle(tokens, at)):
            at = end
        else:
            if tokens[at] == ",":
                pieces.append(tokens[start:at])
                start = at + 1
            at += 1
    return [*pieces, tokens[start:]]
