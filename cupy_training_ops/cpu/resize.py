# SPDX-License-Identifier: MIT
"""The gradient of resizing in NumPy. Formula: the class of the same name in `ops/resize.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def resize_grad(
    dy: Array,
    x: Array,
    roi: object = None,
    scales: Sequence[float] | None = None,
    *,
    mode: str = "linear",
    coordinate_transformation_mode: str = "half_pixel",
) -> Array:
    del roi, mode  # without a meaning for the one mode there is
    real = np.float64 if dy.dtype == np.float64 else np.float32
    rows, columns = (
        _weights(
            x.shape[i], dy.shape[i], scales and scales[i], coordinate_transformation_mode, real
        )
        for i in (2, 3)
    )
    return (rows @ dy.astype(np.float64) @ columns.T).astype(dy.dtype)


def _weights(n: int, m: int, scale: Any, coordinate_transformation_mode: str, real: Any) -> Array:
    """W[i, o]: what output o takes of pixel i."""
    o = np.arange(m, dtype=real)
    if coordinate_transformation_mode == "align_corners":
        position = o * (real(n - 1) / real(m - 1) if m > 1 else real(0))
    else:
        ratio = real(n) / real(max(m, 1)) if scale is None else real(1) / real(scale)
        position = np.maximum(ratio * (o + real(0.5)) - real(0.5), real(0))
    low = np.minimum(position.astype(np.int64), n - 1)
    share = np.where(low < n - 1, position - low.astype(real), real(0))
    weights = np.zeros((n, m))
    weights[low, np.arange(m)] = real(1) - share
    weights[np.minimum(low + 1, n - 1), np.arange(m)] += share
    return weights
