# SPDX-License-Identifier: MIT
"""The one family of errors; each message names operator, argument, what was expected, what came."""

from __future__ import annotations

from typing import NoReturn


class OpError(Exception):
    """Base of every error this package raises."""


class ArgumentError(OpError, ValueError):
    """A wrong shape, layout, value, memory place, aliasing or number of arguments."""


class DtypeError(OpError, TypeError):
    """A dtype, or a combination of dtypes, that the operator does not have."""


class ProviderError(OpError, RuntimeError):
    """What was asked for cannot run here: no GPU, mixed providers, capture without a workspace."""


class CompileError(OpError, RuntimeError):
    """A kernel that did not compile; carries the compiler's log."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


def refuse(op: str, argument: str, expected: str, got: str) -> NoReturn:
    """Raise the standard message for a wrong argument."""
    raise ArgumentError(f"{op}: {argument}: expected {expected}, got {got}")
