# SPDX-License-Identifier: MIT
"""Activations as codes inside of compiled models: the options of torch.compile for it."""

from .partition import ActivationCodes, activation_codes

__all__ = ["ActivationCodes", "activation_codes"]
