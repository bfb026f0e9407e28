# SPDX-License-Identifier: MIT
"""Gradient graphs of inference models: a rule for each operator, and what puts them together."""

from __future__ import annotations

import importlib

from .builder import add_gradients as add_gradients
from .modes import in_evaluation as in_evaluation
from .modes import in_training as in_training
from .nodes import with_gradients as with_gradients

RULES_OF = (  # modules that fill the table of rules as they are imported
    "control",
    "elementwise",
    "losses",
    "normalization",
    "pooling",
    "products",
    "quantization",
    "recurrent",
    "reductions",
    "resizing",
    "sampling",
    "sequences",
    "shapes",
    "signals",
)
for _name in RULES_OF:
    importlib.import_module(f".{_name}", __name__)
