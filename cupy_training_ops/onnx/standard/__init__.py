# SPDX-License-Identifier: MIT
"""ONNX's standard operators over NumPy and CuPy."""

from __future__ import annotations

from . import (
    bits,
    elementwise,
    gru_gradients,
    lstm_gradients,
    old_opsets,
    quantization,
    recurrent,
    recurrent_gradients,
    reductions,
    shapes,
    slices,
)
from .table import NEWEST, TABLE, Standard, find

__all__ = [
    "NEWEST",
    "TABLE",
    "Standard",
    "bits",
    "elementwise",
    "find",
    "gru_gradients",
    "lstm_gradients",
    "old_opsets",
    "quantization",
    "recurrent",
    "recurrent_gradients",
    "reductions",
    "shapes",
    "slices",
]
