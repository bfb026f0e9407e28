# SPDX-License-Identifier: MIT
"""ONNX's standard operators over NumPy and CuPy."""

from __future__ import annotations

from . import (
    bits,
    boxes,
    elementwise,
    gru_gradients,
    lstm_gradients,
    ngrams,
    old_opsets,
    optimizers,
    pools,
    quantization,
    randoms,
    recurrent,
    recurrent_gradients,
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
    "gru_gradients",
    "lstm_gradients",
    "ngrams",
    "old_opsets",
    "optimizers",
    "pools",
    "quantization",
    "randoms",
    "recurrent",
    "recurrent_gradients",
    "reductions",
    "sampling",
    "sequences",
    "shapes",
    "signals",
    "slices",
]
