# SPDX-License-Identifier: MIT
"""Optimizers for training loops: `cto.AdamW(parameters).step(gradients)`, on either provider."""

from __future__ import annotations

from . import sharded as _sharded  # what AdamW is over ranks
from .adam import Adam, AdamW
from .descent import SGD
from .lamb import Lamb

__all__ = ["SGD", "Adam", "AdamW", "Lamb"]
