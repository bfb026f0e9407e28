# SPDX-License-Identifier: MIT
"""Masks as tests see them."""

from __future__ import annotations

import math

import numpy as np

from cupy_training_ops.families.dropout import philox

NAN, INF = math.nan, math.inf
RATIO, STATE = 0.3, (2**63 + 3, 2**40 + 1)


def mask_of(n: int, state=STATE, ratio: float = RATIO) -> np.ndarray:
    return philox.words(state, 0, n) <= philox.keep_threshold(ratio)
