# SPDX-License-Identifier: MIT
"""The one family of errors; each message names operator, argument, what was expected, what came."""

from __future__ import annotations

import reprlib
from typing import NoReturn

MAX_TEXT = 300  # characters of what was expected, and of what came
MAX_BITS = 1024  # of an integer that is written out: float64's range


class OpError(Exception):
    """Base of every error this package raises."""


class ArgumentError(OpError, ValueError):
    """A wrong shape, layout, value, memory place, aliasing or number of arguments."""


class DtypeError(OpError, TypeError):
    """A dtype, or a combination of dtypes, that the operator does not have."""


class ProviderError(OpError, RuntimeError):
    """What was asked for cannot run here: no GPU, mixed providers, capture without a workspace."""


class GroupError(ProviderError):
    """A process group that cannot go on: it is closed, or a rank is gone or late."""


class CompileError(OpError, RuntimeError):
    """A kernel that did not compile; carries the compiler's log."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


def refuse(op: str, argument: str, expected: str, got: str) -> NoReturn:
    """Raise the standard message for a wrong argument."""
    raise ArgumentError(f"{op}: {argument}: expected {cut(expected)}, got {cut(got)}")


def shown(value: object) -> str:
    """A value in a message: a short text of one line, whatever it is."""
    return " ".join(_SHORT.repr(value).split())


def cut(text: str) -> str:
    """The beginning of a text that is too long for a message."""
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxtuple = self.maxlist = 8
        self.maxstring = self.maxother = self.maxlong = 80

    def repr_int(self, x: int, level: int) -> str:
        """Python refuses to write out thousands of digits."""
        bits = x.bit_length()
        return f"an integer of {bits} bits" if bits > MAX_BITS else repr(x)


_SHORT = _Short()
