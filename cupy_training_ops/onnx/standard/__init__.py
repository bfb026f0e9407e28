# SPDX-License-Identifier: MIT
"""ONNX's standard operators over NumPy and CuPy."""

from __future__ import annotations

from . import boxes, columns, elementwise, reductions, sequences, shapes, signals
from .table import NEWEST, TABLE, Standard, find

__all__ = [
    "NEWEST",
    "TABLE",
    "Standard",
    "boxes",
    "columns",
    "elementwise",
    "find",
    "reductions",
    "sequences",
    "shapes",
    "signals",
]
