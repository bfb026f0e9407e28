# SPDX-License-Identifier: MIT
"""Optimizers for training loops: `cto.AdamW(parameters).step(gradients)`, on either provider."""

from __future__ import annotations

import sys

from ..device import marks
from . import adam, sharded, state
from .adam import SGD, Adam, AdamW, Lamb
from .buckets import GradientBuckets

AdamW.over_ranks = sharded.AdamW

for _name, _module in {
    "descent": adam,
    "lamb": adam,
    "moments": state,
    "counts": state,
    "whole": marks,
}.items():
    sys.modules[f"{__name__}.{_name}"] = _module  # where pickles of older versions look

__all__ = ["SGD", "Adam", "AdamW", "GradientBuckets", "Lamb"]
