# SPDX-License-Identifier: MIT
"""Batch normalisation of more than 2^31 elements, against float64 on sampled channels."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.test_large import need

from cupy_training_ops import get_op
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOAT64
from cupy_training_ops.families.batch_norm.reference import batch_normalization_grad as gradient_of
from cupy_training_ops.testing.compare import assert_matches

pytestmark = [pytest.mark.gpu, pytest.mark.large]

# Channels in pieces of vectors, in pieces of single elements, and in columns.
SHAPES = ((64, 330, 320, 320), (70, 1000, 175, 177), (2_100_000, 1032))
CHUNK = 2**26


def filled(shape, shift: int):
    """Halves from -4 to 4, 0.01 apart, that differ from place to place."""
    import cupy

    x = cupy.empty(shape, FLOAT16)
    flat = x.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        index = cupy.arange(start, min(flat.size, start + CHUNK), dtype=np.int64)
        values = ((index * 2654435761 >> shift) % 801).astype(FLOAT32) / 100 - 4
        flat[start : start + CHUNK] = values
    return x


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward_and_gradient(shape) -> None:
    import cupy

    elements = int(np.prod(shape, dtype=np.int64))
    assert elements > 2**31
    need(3 * 2 * elements + 2**33)
    n = shape[1]
    sampled = np.unique([0, n // 3, n - 1])
    x, one, zero = filled(shape, 7), cupy.ones(n, FLOAT32), cupy.zeros(n, FLOAT32)
    y, _, _, mean, inv_std = get_op("BatchNormInternal")()(x, one, zero, zero.copy(), one.copy())
    exact = channels(x, sampled).astype(FLOAT64)
    means, stds = exact.mean(1), np.sqrt(exact.var(1) + 1e-5)
    assert np.abs(mean.get()[sampled] - means).max() < 2e-5
    assert np.abs(inv_std.get()[sampled] * stds - 1).max() < 2e-5
    expected = (exact - means[:, None]) / stds[:, None]
    assert_matches(channels(y, sampled), expected.astype(FLOAT16))
    del y
    dy = filled(shape, 11)
    op = get_op("BatchNormalizationGrad")(epsilon=1e-5)
    actual, *sums = op(dy, x, one, mean, inv_std, out=(dy.copy(), None, None))
    rows = [channels(array, sampled).T.astype(FLOAT64) for array in (dy, x)]
    saved = [array.get()[sampled].astype(FLOAT64) for array in (mean, inv_std)]
    ones = np.ones(len(sampled))
    gradient, *expected_sums = gradient_of(*rows, ones, *saved, epsilon=1e-5)
    assert_matches(channels(actual, sampled), gradient.T.astype(FLOAT16))
    scale = np.abs(rows[0]).sum(0)
    for total, exact_sum in zip(sums, expected_sums, strict=True):
        assert (np.abs(total.get()[sampled] - exact_sum) < 1e-6 * scale).all()


def channels(array, sampled):
    """The elements of some channels, on the host."""
    return np.stack([array[:, int(channel)].get().reshape(-1) for channel in sampled])


def test_one_channel() -> None:
    """Of single elements, as it does not begin at a multiple of 16 bytes."""
    import cupy

    n = 2**31 + 9
    need(2 * 2 * n + 2**33)
    x = filled((n + 1,), 7)[1:]
    parts = [slice(start, min(n, start + CHUNK)) for start in range(0, n, CHUNK)]
    mean = sum(float(x[part].astype(FLOAT64).sum()) for part in parts) / n
    var = sum(float(((x[part].astype(FLOAT64) - mean) ** 2).sum()) for part in parts) / n
    one, zero = cupy.ones(1, FLOAT32), cupy.zeros(1, FLOAT32)
    y, _, _, *saved = get_op("BatchNormInternal")()(x, one, zero, zero.copy(), one.copy())
    inv_std = 1 / np.sqrt(var + 1e-5)
    assert_matches(saved[0].get(), np.array([mean], FLOAT32))
    assert_matches(saved[1].get(), np.array([inv_std], FLOAT32))
    for part in (parts[0], parts[-1]):
        expected = (x[part].get().astype(FLOAT64) - mean) * inv_std
        assert_matches(y[part].get(), expected.astype(FLOAT16))
