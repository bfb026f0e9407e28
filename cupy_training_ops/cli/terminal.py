# SPDX-License-Identifier: MIT
"""Lines for people: with names escaped, in columns, as wide as a terminal; and progress bars.

A bar is on stderr, only where that is a terminal, and not before a second has gone.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import click

from ..errors import printable

WIDTH = 80
DELAY_S = 1.0


def say(line: str, err: bool = False) -> None:
    """Print one line that holds a name."""
    click.echo(printable(line), err=err)


def align(rows: Sequence[Sequence[str]], left: int = 1, gap: str = "  ") -> list[str]:
    """Lines with every column as wide as its widest cell, the first `left` ones flush left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [gap.join(_cells(row, widths, left)).rstrip() for row in rows]


def fit_to_terminal(line: str) -> list[str]:
    """A line wrapped to the terminal's width; as it is where no terminal reads it."""
    width = shutil.get_terminal_size((0, 0)).columns if sys.stdout and sys.stdout.isatty() else 0
    if len(line) <= width or not width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(line, width, subsequent_indent=f"{indent}    ", break_on_hyphens=False)


def wrap(text: str, width: int = WIDTH) -> list[str]:
    """One paragraph as lines, the second and later ones indented."""
    return textwrap.wrap(text, width, subsequent_indent="    ", break_on_hyphens=False)


def _cells(row: Sequence[str], widths: Sequence[int], left: int) -> list[str]:
    return [
        cell.ljust(width) if i < left else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


# ---- progress ------------------------------------------------------------------------------------


def progress(
    items: Iterable[Any], label: str, name: Callable[[Any], str], length: int | None = None
) -> AbstractContextManager[Any]:
    """A context whose value yields the items; the bar shows the `name` of the current one.

    length: of an iterator, which does not know its own.
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
def advancing(length: int, label: str) -> Iterator[Callable[[int], None]]:
    """A context whose value advances the bar by n: `advance(n)`; it is shown after a second."""
    with contextlib.ExitStack() as bars:
        start, waiting, bar = time.monotonic(), 0, None

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
