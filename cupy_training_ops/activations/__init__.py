# SPDX-License-Identifier: MIT
"""Activations stored as codes from the forward pass to the backward pass."""

from __future__ import annotations

from .stash import ActivationStash

__all__ = ["ActivationStash"]
