# SPDX-License-Identifier: MIT
"""ONNX's standard operators over NumPy and CuPy."""

from __future__ import annotations

from . import (
    bits,
    boxes,
    elementwise,
    old_opsets,
    optimizers,
    pools,
    quantization,
    recurrent,
    reductions,
    sampling,
    shapes,
    signals,
    slices,
)
from .table import NEWEST, TABLE, Standard, find

__all__ = [
    "NEWEST",
    "TABLE",
    "Standard",
    "bits",
    "boxes",
    "elementwise",
    "find",
    "old_opsets",
    "optimizers",
    "pools",
    "quantization",
    "recurrent",
    "reductions",
    "sampling",
    "shapes",
    "signals",
    "slices",
]
