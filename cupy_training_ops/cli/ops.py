# SPDX-License-Identifier: MIT
"""`ops`: the operators there are, and the help text of one."""

from __future__ import annotations

from collections.abc import Iterator

import click

from ..frame.op import Op
from ..registry import REGISTRY, get_op
from ..schema import combinations
from .table import aligned


@click.command()
@click.argument("name", required=False)
@click.option("--version", type=click.IntRange(1), help="The operator that serves this opset.")
def ops(name: str | None, version: int | None) -> None:
    """List the operators, or print the help text of one."""
    if name is None and version is not None:
        raise click.UsageError("--version goes with the NAME of an operator")
    lines = _listed() if name is None else _described(get_op(name, version))
    for line in lines:
        click.echo(line)


def _listed() -> list[str]:
    heading = ("operator", "family", "domain", "opset", "types", "formula")
    rows = [_row(REGISTRY[key]) for key in sorted(REGISTRY, key=lambda key: key[1:])]
    return aligned([heading, *rows], left=6)


def _row(cls: type[Op]) -> tuple[str, ...]:
    types = str(len(combinations(cls.types)))
    return (cls.name, cls.family, cls.domain, _opset(cls), types, _doc(cls).splitlines()[0])


def _described(cls: type[Op]) -> Iterator[str]:
    yield f"{cls.name}  {cls.domain}, opset {_opset(cls)}, family {cls.family}"
    yield from ("", *_doc(cls).splitlines())


def _opset(cls: type[Op]) -> str:
    return f"{cls.since}-{cls.until}" if cls.until else f"{cls.since}+"


def _doc(cls: type[Op]) -> str:
    return cls.__doc__ or ""
