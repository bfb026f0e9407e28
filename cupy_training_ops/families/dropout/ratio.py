# SPDX-License-Identifier: MIT
"""Dropout's ratio."""

from __future__ import annotations

import numpy as np

from ...dtypes import Dtype
from ...rules.widening import rounded

DEFAULT_RATIO = 0.5


def dropout_scale(ratio: float, t: Dtype) -> np.floating:
    """The factor of kept elements, 1 / (1 - ratio), in the type that is computed in."""
    return rounded(1 / (1 - ratio), t)
