# SPDX-License-Identifier: MIT
"""torch.optim.Optimizer subclasses: one pass computes the norm, one more updates."""

from __future__ import annotations

import sys

from . import adamw
from .adamw import SGD, Adam, AdamW, Lamb

for _name in ("sgd", "lamb"):
    sys.modules[f"{__name__}.{_name}"] = adamw  # where pickles of older versions look

__all__ = ["SGD", "Adam", "AdamW", "Lamb"]
