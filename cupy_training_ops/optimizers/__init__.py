# SPDX-License-Identifier: MIT
"""Optimizers for training loops: `cto.AdamW(parameters).step(gradients)`, on either provider."""

from __future__ import annotations

from . import sharded  # what AdamW is over ranks
from .adam import SGD, Adam, AdamW, Lamb
from .buckets import GradientBuckets

AdamW.over_ranks = sharded.AdamW

__all__ = ["SGD", "Adam", "AdamW", "GradientBuckets", "Lamb"]
