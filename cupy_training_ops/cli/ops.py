# SPDX-License-Identifier: MIT
"""`ops`: the operators there are, and the contract of one."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import click

from ..dtypes import dtype_name
from ..frame.op import Op
from ..registry import REGISTRY, combinations, get_op
from ..schema import REQUIRED, Attribute, Input, Output
from .table import aligned


@click.command()
@click.argument("name", required=False)
@click.option("--version", type=click.IntRange(1), help="The operator that serves this opset.")
def ops(name: str | None, version: int | None) -> None:
    """List the operators, or print the contract of one."""
    if name is None and version is not None:
        raise click.UsageError("--version goes with the NAME of an operator")
    lines = _listed() if name is None else _contract(get_op(name, version))
    for line in lines:
        click.echo(line)


def _listed() -> list[str]:
    heading = ("operator", "family", "domain", "opset", "types", "formula")
    rows = [_row(REGISTRY[key]) for key in sorted(REGISTRY, key=lambda key: key[1:])]
    return aligned([heading, *rows], left=6)


def _row(cls: type[Op]) -> tuple[str, ...]:
    types = str(len(combinations(cls)))
    return (cls.name, cls.family, cls.domain, _opset(cls), types, _doc(cls).splitlines()[0])


def _contract(cls: type[Op]) -> Iterator[str]:
    yield f"{cls.name}  {cls.domain}, opset {_opset(cls)}, family {cls.family}"
    yield f"cupy_training_ops.{cls.function_name}"
    yield from _section("inputs", [_place(item) for item in cls.inputs])
    yield from _section("outputs", [_place(item) for item in cls.outputs])
    yield from _section("attributes", [_attribute(item) for item in cls.attributes])
    allowed = [(v, ", ".join(map(dtype_name, dtypes))) for v, dtypes in cls.types.items()]
    yield from _section("types", allowed)
    yield from ("", *_doc(cls).splitlines())


def _section(title: str, rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A titled block, left out where there is nothing in it."""
    body = [f"  {line}" for line in aligned(rows, left=3)] if rows else []
    return ["", title, *body] if body else []


def _place(item: Input | Output) -> tuple[str, ...]:
    """Name, type, and where an input or output lives, with all that is special about it."""
    remarks = [word for word in ("optional", "variadic", "strided") if getattr(item, word, False)]
    aliased = getattr(item, "aliases", None)
    remarks += [f"written into {aliased}"] if aliased else []
    shared = " or ".join(f"{name}'s" for name in getattr(item, "may_alias", ()))
    remarks += [f"out= may be {shared} array"] if shared else []
    return item.name, item.type, ", ".join([item.memory, *remarks])


def _attribute(item: Attribute) -> tuple[str, ...]:
    default = "required" if item.default is REQUIRED else f"default {item.default!r}"
    return item.name, default, f"binds {item.type}" if item.type else ""


def _opset(cls: type[Op]) -> str:
    return f"{cls.since}-{cls.until}" if cls.until else f"{cls.since}+"


def _doc(cls: type[Any]) -> str:
    return inspect.getdoc(cls) or ""
