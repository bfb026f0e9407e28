# SPDX-License-Identifier: MIT
"""The one progress bar: on stderr, only where that is a terminal, and not for what is soon done."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import click

DELAY_S = 1.0


def progress(
    items: Iterable[Any], label: str, name: Callable[[Any], str], length: int | None = None
) -> AbstractContextManager[Any]:
    """A context whose value yields the items; the bar shows the `name` of the current one.

    An iterator does not know its length, so that it has to be given.
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
    """A context whose value is told how much more of the length is done; a second shows the bar."""
    with contextlib.ExitStack() as bars:
        start, waiting, bar = time.monotonic(), 0, None

        def advance(steps: int) -> None:
            nonlocal waiting, bar
            waiting += steps
            if bar is None and sys.stderr.isatty() and time.monotonic() >= start + DELAY_S:
                shown = click.progressbar(length=length, label=label, file=sys.stderr)
                bar = bars.enter_context(shown)
            if bar is not None:
                bar.update(waiting)
                waiting = 0

        yield advance
