# SPDX-License-Identifier: MIT
"""ONNX's standard operators over NumPy and CuPy."""

from __future__ import annotations

from . import elementwise, reductions, sequences, shapes
from .table import NEWEST, TABLE, Standard, find

__all__ = [
    "NEWEST",
    "TABLE",
    "Standard",
    "elementwise",
    "find",
    "reductions",
    "sequences",
    "shapes",
]
