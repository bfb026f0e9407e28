# SPDX-License-Identifier: MIT
"""Training in PyTorch: compressed activations, optimizers; imported where it is asked for."""

from __future__ import annotations

from .activations import CompressedActivations, compressed_activations
from .optim import SGD, AdamW, Lamb

__all__ = ["SGD", "AdamW", "CompressedActivations", "Lamb", "compressed_activations"]
