# SPDX-License-Identifier: MIT
"""Float16 by its steps: results that are rounded once are the nearest half, but beside ties."""

from __future__ import annotations

import numpy as np

from cupy_training_ops.dtypes import FLOAT16


def ulps(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Distance of finite float16 values in representable steps."""
    ordered = [np.where(a < 0, -0x8000 - a.astype(np.int32), a) for a in
               (actual.view(np.int16), expected.view(np.int16))]  # fmt: skip
    return np.abs(ordered[0] - ordered[1])


def assert_rounded_once(actual: np.ndarray, exact: np.ndarray) -> None:
    """float32 is 8,192 times finer than float16: its errors move one result in some hundreds.

    A step in float16 on the way, of an operand or of a partial result, moves far more of them.
    """
    assert (actual.dtype, actual.shape) == (FLOAT16, exact.shape)
    steps = ulps(actual, exact.astype(FLOAT16))
    assert steps.max() <= 1
    assert np.count_nonzero(steps) <= 0.02 * steps.size
