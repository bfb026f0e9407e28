# SPDX-License-Identifier: MIT
"""The one progress bar: on stderr, and only where that is a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import click


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
