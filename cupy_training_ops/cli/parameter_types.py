# SPDX-License-Identifier: MIT
"""Types of parameters that are names: a wrong one gets a hint, and a shell completes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from ..call.op import Op
from ..errors import OpError, unknown
from ..registry import OPERATORS, get_op, names
from ..samples import Sample
from ..testing.samples import all_samples
from .inputs import array_names, names_hint


class OneOf(click.Choice[str]):
    """One of some names; the error for another one shows those that are like it."""

    def __init__(self, kind: str, known: Iterable[str]) -> None:
        """kind: noun for the error, such as "codec". known: the names."""
        super().__init__(list(known))
        self._kind = kind

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> Any:
        """Return the name if it is one of them, else fail."""
        if value not in self.choices:
            known = names_hint(list(self.choices))
            self.fail(unknown(self._kind, value, self.choices, known), param, ctx)
        return value


class OperatorName(click.types.StringParamType):
    """An operator by its registered name or by its function's."""

    name = "operator"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return registered names that begin with `incomplete`, functions' for a small letter."""
        operators = OPERATORS if incomplete[:1].islower() else names()
        return _starting(operators, incomplete)


class ArrayName(click.types.StringParamType):
    """An array of the files that stand before it."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return names that begin with `incomplete`, of arrays in those files that can be read.

        Click has the files in `ctx.args` as long as the name is missing.
        """
        known: list[str] = []
        for file in ctx.args:
            with contextlib.suppress(OpError, click.ClickException):
                known += array_names(file)
        return _starting(known, incomplete)


def operator(name: str, opset: int | None = None) -> type[Op]:
    """Return the operator with this registered or function name, for this opset or the newest."""
    registered = OPERATORS[name].name if name in OPERATORS else name
    return get_op(registered, opset)


def _starting(known: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in known if name.startswith(incomplete)]


nonfinite_option = click.option(
    "--keep-nonfinite/--zero-nonfinite",
    default=True,
    help="msfp15 and msfp15_signed: zero makes zeros of eight values with an infinity or NaN, as "
    "ONNX Runtime does.  [default: keep]",
)

op_option = click.option(
    "--op",
    "names",
    multiple=True,
    type=OperatorName(),
    help="Only this operator; may be given more than once.",
)


def chosen_samples(names: tuple[str, ...]) -> Mapping[str, tuple[Sample, ...]]:
    """Return {operator: its samples, () if it has none}; without names, of all operators.

    names: registered names or functions' names.
    """
    samples = all_samples()
    chosen = [operator(name).name for name in names]
    return {name: samples.get(name, ()) for name in chosen} if chosen else samples
