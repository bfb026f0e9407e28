# SPDX-License-Identifier: MIT
"""Optimizers of PyTorch's protocol whose steps are a pass for the norm and one for all else."""

from __future__ import annotations

from .adamw import SGD, AdamW, Lamb

__all__ = ["SGD", "AdamW", "Lamb"]
