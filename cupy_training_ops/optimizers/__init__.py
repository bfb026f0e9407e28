# SPDX-License-Identifier: MIT
"""Optimizers for training loops: `cto.AdamW(parameters).step(gradients)`, on either provider."""

from __future__ import annotations

from . import sharded  # what AdamW is over ranks
from .adam import Adam, AdamW
from .buckets import GradientBuckets
from .descent import SGD
from .lamb import Lamb

AdamW.over_ranks = sharded.AdamW

__all__ = ["SGD", "Adam", "AdamW", "GradientBuckets", "Lamb"]
