# SPDX-License-Identifier: MIT
"""Aligned columns of text."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], left: int = 1, gap: str = "  ") -> list[str]:
    """Lines with every column as wide as its widest cell, the first `left` ones flush left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [gap.join(_cells(row, widths, left)).rstrip() for row in rows]


def _cells(row: Sequence[str], widths: Sequence[int], left: int) -> list[str]:
    return [
        cell.ljust(width) if i < left else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
