# SPDX-License-Identifier: MIT
"""The gradient of what was added to every row."""

from __future__ import annotations

from torch import Tensor


def over_rows(gradient: Tensor, bias: Tensor) -> Tensor:
    """The gradient of a bias, a row or an array of the gradient's shape."""
    if bias.shape == gradient.shape:
        return gradient
    return gradient.sum(tuple(range(gradient.dim() - bias.dim())))
