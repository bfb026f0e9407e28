# SPDX-License-Identifier: MIT
"""Losses over more than 2^31 scores, against float64 on sampled rows and in the sum."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.test_large import need

from cupy_training_ops import get_op
from cupy_training_ops import softmax_cross_entropy_loss_internal as loss_of
from cupy_training_ops import softmax_cross_entropy_loss_internal_grad as gradient_of
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOAT64
from cupy_training_ops.testing.compare import assert_matches

pytestmark = [pytest.mark.gpu, pytest.mark.large]

ROWS, CLASSES, SAMPLED = 419_431, 5120, 1000
PIECE = 16_384  # rows that are made and summed at a time


@pytest.fixture(scope="module")
def scores():
    """Halves from -4 to 4, 0.01 apart, that differ from place to place; and labels."""
    import cupy

    need(3 * 2 * ROWS * CLASSES + 2**31)
    x = cupy.empty((ROWS, CLASSES), FLOAT16)
    for start in range(0, ROWS, PIECE):
        rows = min(PIECE, ROWS - start)
        index = cupy.arange(start * CLASSES, (start + rows) * CLASSES, dtype=np.int64)
        values = ((index * 2654435761 >> 7) % 801).astype(FLOAT32) / 100 - 4
        x[start : start + rows] = values.reshape(rows, CLASSES)
    return x, cupy.arange(ROWS, dtype=np.int64) * 31 % CLASSES


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_loss_and_gradient(rng, scores, reduction) -> None:
    import cupy

    x, labels = scores
    rows = np.unique([0, ROWS - 1, *rng.integers(0, ROWS, SAMPLED)])
    some, wanted = x[rows].get().astype(FLOAT64), labels[rows].get()
    losses, log_prob = loss_of(some, wanted, reduction="none")
    op = get_op("SoftmaxCrossEntropyLossInternal")(reduction=reduction)
    loss, actual = op(x, labels)
    assert_matches(actual[rows].get(), log_prob.astype(FLOAT16))
    if reduction == "none":
        assert_matches(loss[rows].get(), losses.astype(FLOAT16))
    dy = cupy.full(ROWS if reduction == "none" else (), 64, FLOAT16)
    gradient = get_op("SoftmaxCrossEntropyLossInternalGrad")(reduction=reduction)
    given = (dy[rows].get() if reduction == "none" else dy.get(), actual[rows].get(), wanted)
    expected = gradient_of(*(a.astype(FLOAT64) for a in given[:2]), wanted, reduction="sum"
                           if reduction == "mean" else "none")  # fmt: skip
    expected /= ROWS if reduction == "mean" else 1
    assert_matches(gradient(dy, actual, labels)[rows].get(), expected.astype(FLOAT16))


def test_the_mean_is_that_of_all_rows(scores) -> None:
    import cupy

    x, labels = scores
    op = get_op("SoftmaxCrossEntropyLossInternal")(output_type=FLOAT32)
    mean, _ = op(x, labels, outputs=("output",))
    total = 0.0
    for start in range(0, ROWS, PIECE):
        part = x[start : start + PIECE].astype(FLOAT64)
        picked = cupy.take_along_axis(part, labels[start : start + PIECE, None], 1)[:, 0]
        total += float((cupy.log(cupy.exp(part).sum(1)) - picked).sum())
    assert abs(float(mean) - total / ROWS) < 2e-5 * total / ROWS
