# SPDX-License-Identifier: MIT
"""ONNX's standard operators over NumPy and CuPy."""

from __future__ import annotations

from . import bits, elementwise, old_opsets, quantization, recurrent, reductions, shapes, slices
from .table import NEWEST, TABLE, Standard, find

__all__ = [
    "NEWEST",
    "TABLE",
    "Standard",
    "bits",
    "elementwise",
    "find",
    "old_opsets",
    "quantization",
    "recurrent",
    "reductions",
    "shapes",
    "slices",
]
