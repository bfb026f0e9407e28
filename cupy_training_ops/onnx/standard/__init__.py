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
    randoms,
    recurrent,
    reductions,
    sampling,
    sequences,
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
    "randoms",
    "recurrent",
    "reductions",
    "sampling",
    "sequences",
    "shapes",
    "signals",
    "slices",
]
