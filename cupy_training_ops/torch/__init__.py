# SPDX-License-Identifier: MIT
"""Training in PyTorch with compressed activations; imported where it is asked for."""

from __future__ import annotations

from .activations import CompressedActivations, compressed_activations

__all__ = ["CompressedActivations", "compressed_activations"]
