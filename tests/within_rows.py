# SPDX-License-Identifier: MIT
"""Comparison of rows whose elements are differences of larger terms."""

from __future__ import annotations

import numpy as np

from cupy_training_ops.dtypes import FLOAT32, FLOAT64


def assert_within_rows(actual: np.ndarray, expected: np.ndarray) -> None:
    """Results are differences of larger terms: the bound counts a twentieth of a row's largest."""
    largest = np.abs(expected.astype(FLOAT64)).max(-1, keepdims=True)
    bound = np.maximum(np.abs(expected.astype(FLOAT64)), 0.05 * largest)
    relative = 1e-5 if expected.dtype == FLOAT32 else 2e-3
    assert (np.abs(actual.astype(FLOAT64) - expected) <= relative * bound).all()
