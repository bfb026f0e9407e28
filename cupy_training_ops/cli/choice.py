# SPDX-License-Identifier: MIT
"""Names on the command line: a wrong one gets a hint, and a shell completes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

from ..call.op import Op
from ..errors import OpError, unknown
from ..functions import OPERATORS
from ..registry import get_op, names
from .inputs import listed, opened


class Known(click.Choice[str]):
    """One of some names, of which a hint shows those that are like a wrong one."""

    def __init__(self, kind: str, known: Iterable[str]) -> None:
        super().__init__(list(known))
        self._kind = kind

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> Any:
        """The name, if it is one of them."""
        if value not in self.choices:
            known = listed(list(self.choices))
            self.fail(unknown(self._kind, value, self.choices, known), param, ctx)
        return value


class OperatorName(click.types.StringParamType):
    """An operator by its registered name or by its function's."""

    name = "operator"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Registered names; functions' where one is begun in small letters."""
        known = OPERATORS if incomplete[:1].islower() else names()
        return _starting(known, incomplete)


class ArrayName(click.types.StringParamType):
    """An array of the files that are given before it."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The names in the files; of what cannot be read there are none.

        As long as the name is missing, Click has not told files from options.
        """
        found: list[str] = []
        for file in ctx.args:
            with contextlib.suppress(OpError, click.ClickException), opened(file) as members:
                found += [member.name for member in members]
        return _starting(found, incomplete)


def operator(name: str, opset: int | None = None) -> type[Op]:
    """The operator of this name, or whose function has it."""
    registered = OPERATORS[name].name if name in OPERATORS else name
    return get_op(registered, opset)


def _starting(known: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in known if name.startswith(incomplete)]
