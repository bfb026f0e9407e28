# SPDX-License-Identifier: MIT
"""Aligned columns of text, and lines no longer than a terminal is wide."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

WIDTH = 80


def aligned(rows: Sequence[Sequence[str]], left: int = 1, gap: str = "  ") -> list[str]:
    """Lines with every column as wide as its widest cell, the first `left` ones flush left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [gap.join(_cells(row, widths, left)).rstrip() for row in rows]


def fitted(line: str) -> list[str]:
    """A line as wide as the terminal; as it is where there is none, for other programs."""
    width = shutil.get_terminal_size((0, 0)).columns if sys.stdout and sys.stdout.isatty() else 0
    if len(line) <= width or not width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(line, width, subsequent_indent=f"{indent}    ", break_on_hyphens=False)


def wrapped(text: str, width: int = WIDTH) -> list[str]:
    """One paragraph; what does not fit goes on, indented."""
    return textwrap.wrap(text, width, subsequent_indent="    ", break_on_hyphens=False)


def _cells(row: Sequence[str], widths: Sequence[int], left: int) -> list[str]:
    return [
        cell.ljust(width) if i < left else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
