# SPDX-License-Identifier: MIT
"""Output of commands: lines for people, names escaped and in columns; JSON; progress bars.

A bar is on stderr, only where that is a terminal, and not before a second has gone.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import click

from ..errors import printable
from ..machine import system, versions

WIDTH = 80  # columns
DELAY_S = 1.0  # seconds before a progress bar is shown


def say(line: str, err: bool = False) -> None:
    """Print one line, on stderr with `err`; control characters, as of names in it, are escaped."""
    click.echo(printable(line), err=err)


def align(rows: Sequence[Sequence[str]], left: int = 1, gap: str = "  ") -> list[str]:
    """Return rows as lines with every column as wide as its widest cell, `gap` between them.

    The first `left` columns are flush left, the others flush right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    forms = [f"{'<' if i < left else '>'}{width}" for i, width in enumerate(widths)]
    return [gap.join(map(format, row, forms)).rstrip() for row in rows]


def fit_to_terminal(line: str) -> list[str]:
    """Return a line wrapped to the terminal's width; as it is if stdout is no terminal."""
    width = shutil.get_terminal_size((0, 0)).columns if sys.stdout and sys.stdout.isatty() else 0
    if len(line) <= width or not width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(line, width, subsequent_indent=f"{indent}    ", break_on_hyphens=False)


def wrap(text: str, width: int = WIDTH) -> list[str]:
    """Return a paragraph as lines, the second and later ones indented."""
    return textwrap.wrap(text, width, subsequent_indent="    ", break_on_hyphens=False)


# ---- JSON: an object a line, as soon as it is known; docs/cli.md describes them ------------------

SCHEMA = 1  # goes up when a field changes its meaning or goes away


class JsonLines:
    """Printer of a command's JSON objects, each with schema, type and machine."""

    def __init__(self, command: str, machine: str, with_cuda: bool = False, **about: Any) -> None:
        """Print the first object, "run", with versions (with_cuda: also CUDA's) and `about`.

        machine: name of the processor or GPU.
        """
        self._machine = machine
        self.write("run", command=command, **system(), versions=versions(with_cuda), **about)

    def write(self, kind: str, **fields: Any) -> None:
        """Print one object of type `kind`; infinity and NaN, which JSON lacks, become null."""
        whole = {"schema": SCHEMA, "type": kind, "machine": self._machine} | fields
        click.echo(json.dumps({name: _finite(v) for name, v in whole.items()}, allow_nan=False))


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One object a line (docs/cli.md); null for inf and -.",
)


# ---- progress ------------------------------------------------------------------------------------


def progress(
    items: Iterable[Any], label: str, name: Callable[[Any], str], length: int | None = None
) -> AbstractContextManager[Any]:
    """Return a context whose value yields the items, with a progress bar if stderr is a terminal.

    label: text ahead of the bar. name: text of an item, shown while it is the current one. length:
    number of items, needed if they are an iterator.
    """
    if not sys.stderr.isatty():
        return contextlib.nullcontext(items)
    return click.progressbar(
        items,
        length=length,
        label=label,
        item_show_func=lambda item: None if item is None else name(item),
        file=sys.stderr,
    )


@contextlib.contextmanager
def progress_bar(length: int, label: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances a progress bar: advance(steps), of `length` in all.

    The bar is shown after DELAY_S, if stderr is a terminal, with `label` ahead of it.
    """
    with contextlib.ExitStack() as bars:
        start, waiting, bar = time.monotonic(), 0, None  # waiting: steps not shown yet

        def advance(steps: int) -> None:
            nonlocal waiting, bar
            waiting += steps
            if bar is None and sys.stderr.isatty() and time.monotonic() >= start + DELAY_S:
                new = click.progressbar(length=length, label=label, file=sys.stderr)
                bar = bars.enter_context(new)
            if bar is not None:
                bar.update(waiting)
                waiting = 0

        yield advance
