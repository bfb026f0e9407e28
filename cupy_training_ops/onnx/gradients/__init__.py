# SPDX-License-Identifier: MIT
"""Gradient graphs of inference models: a rule for each operator, and what puts them together."""

from __future__ import annotations

from . import (
    elementwise,
    losses,
    normalization,
    pooling,
    products,
    quantization,
    reductions,
    resizing,
    shapes,
)
from .builder import add_gradients as add_gradients
from .modes import in_evaluation as in_evaluation
from .modes import in_training as in_training

del (
    elementwise,
    losses,
    normalization,
    pooling,
    products,
    quantization,
    reductions,
    resizing,
    shapes,
)
