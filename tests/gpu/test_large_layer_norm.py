# SPDX-License-Identifier: MIT
"""LayerNormalizationGrad over more than 2^31 halves, against float64 on sampled rows."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.test_large import need

from cupy_training_ops import get_op, layer_normalization_grad
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOAT64
from cupy_training_ops.testing.compare import assert_matches

pytestmark = [pytest.mark.gpu, pytest.mark.large]

PIECE = 65_536  # rows that are made and summed at a time
SAMPLED = 1000


def halves(cupy, count: int, length: int, factor: int):
    """From -4 to 4, 0.01 apart, that differ from place to place."""
    x = cupy.empty((count, length), FLOAT16)
    for start in range(0, count, PIECE):
        rows = min(PIECE, count - start)
        index = cupy.arange(start * length, (start + rows) * length, dtype=np.int64)
        values = ((index * factor >> 7) % 801).astype(FLOAT32) / 100 - 4
        x[start : start + rows] = values.reshape(rows, length)
    return x


@pytest.mark.parametrize("length", [1024, 1023, 20_000])
def test_gradients(rng, length) -> None:
    import cupy

    count = 2**31 // length + 5
    need(3 * 2 * count * length + 2**32)
    dy, x = (halves(cupy, count, length, f) for f in (2654435761, 1779033703))
    scale = cupy.asarray(rng.uniform(0.5, 2, length).astype(FLOAT16))
    mean = cupy.asarray(rng.uniform(-1, 1, count).astype(FLOAT32))
    inv_std = cupy.asarray(rng.uniform(0.3, 0.5, count).astype(FLOAT32))
    dx, scale_grad, bias_grad = get_op("LayerNormalizationGrad")()(dy, x, scale, mean, inv_std)
    rows = np.unique([0, count - 1, *rng.integers(0, count, SAMPLED)])
    some = [a[rows].get().astype(FLOAT64) for a in (dy, x)]
    statistics = [a[rows].get().astype(FLOAT64) for a in (mean, inv_std)]
    expected = layer_normalization_grad(*some, scale.get().astype(FLOAT64), *statistics)[0]
    assert_matches(dx[rows].get(), expected.astype(FLOAT16))
    check_sums(cupy, (dy, x, mean, inv_std), (scale_grad, bias_grad))


def check_sums(cupy, inputs, found) -> None:
    """All columns, by pieces of rows in float64."""
    dy, x, mean, inv_std = inputs
    sums = [cupy.zeros(dy.shape[1]) for _ in range(2)]
    for start in range(0, len(dy), PIECE):
        piece = slice(start, start + PIECE)
        wide, center = dy[piece].astype(FLOAT64), mean[piece, None].astype(FLOAT64)
        sums[0] += (wide * (x[piece].astype(FLOAT64) - center) * inv_std[piece, None]).sum(0)
        sums[1] += wide.sum(0)
    for actual, expected in zip(found, sums, strict=True):
        with np.errstate(over="ignore"):  # infinite in float16, as some sums are
            rounded = expected.get().astype(FLOAT16)
        assert_matches(actual.get(), rounded)
