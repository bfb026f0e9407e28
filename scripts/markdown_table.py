# SPDX-License-Identifier: MIT
"""Tables of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def row_of(cells: Iterable[str]) -> str:
    """Return a row of a table as a line."""
    return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"


def head_of(columns: Sequence[str]) -> str:
    """Return the two lines at the head of a table."""
    return f"{row_of(columns)}\n{'|---' * len(columns)}|"


def table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Return the lines of a whole table."""
    return "\n".join([head_of(columns), *map(row_of, rows)])
