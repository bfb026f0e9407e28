# SPDX-License-Identifier: MIT
"""`ops`: the operators there are, and the help text of one."""

from __future__ import annotations

from collections.abc import Iterator

import click

from ..call.op import Op
from ..declare.type_rows import combinations
from ..registry import REGISTRY
from .parameter_types import OperatorName, operator
from .terminal import align, fit_to_terminal


@click.command()
@click.argument("name", required=False, type=OperatorName())
@click.option("--opset", type=click.IntRange(1), help="The operator that serves this opset.")
def ops(name: str | None, opset: int | None) -> None:
    """List the operators, or print the help text of one.

    NAME is the registered one or its function's: GistPack1Encoder, gist_pack1_encoder.
    """
    if name is None and opset is not None:
        raise click.UsageError("--opset goes with the NAME of an operator")
    lines = _table() if name is None else _help_lines(operator(name, opset))
    for line in lines:
        for fitting in fit_to_terminal(line):
            click.echo(fitting)


def _table() -> list[str]:
    heading = ("operator", "family", "domain", "opset", "types", "formula")
    rows = [_row(REGISTRY[key]) for key in sorted(REGISTRY, key=lambda key: key[1:])]
    return align([heading, *rows], left=6)


def _row(cls: type[Op]) -> tuple[str, ...]:
    types = str(len(combinations(cls.types)))
    return (cls.name, cls.family, cls.domain, _opset(cls), types, _doc(cls).splitlines()[0])


def _help_lines(cls: type[Op]) -> Iterator[str]:
    yield f"{cls.name}  {cls.domain}, opset {_opset(cls)}, family {cls.family}"
    yield from ("", *_doc(cls).splitlines())


def _opset(cls: type[Op]) -> str:
    return f"{cls.since}-{cls.until}" if cls.until else f"{cls.since}+"


def _doc(cls: type[Op]) -> str:
    return cls.__doc__ or ""
