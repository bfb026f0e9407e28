# SPDX-License-Identifier: MIT
"""Text from files and names, such that a terminal shows it and does not obey it."""

from __future__ import annotations

import click


def printable(text: str) -> str:
    """The text with line ends, control characters and halves of characters as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(line: str, err: bool = False) -> None:
    """Print one line that holds a name."""
    click.echo(printable(line), err=err)
