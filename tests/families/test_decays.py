# SPDX-License-Identifier: MIT
"""Decays of 1 and more, which are sums like others where no bias is corrected."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops import ArgumentError, get_op
from cupy_training_ops.testing.compare import assert_matches

DECAYS = list(product((0.0, 1.0, 1.5), (1.0, 0.9)))
UNCORRECTED = {
    "AdamOptimizer": {"do_bias_correction": False},
    "AdamWOptimizer": {"correct_bias": False, "adam_mode": 1},
    "LambOptimizer": {"do_bias_correction": False},
}


def call(name, op, arrays, step=1):
    if name == "AdamOptimizer":
        op(0.1, step, *arrays)
    elif name == "AdamWOptimizer":
        op(0.1, step, *([x] for x in arrays))
    else:
        op(None, None, None, 0.1, step, *([x] for x in arrays))


@pytest.mark.parametrize(("alpha", "beta"), DECAYS)
@pytest.mark.parametrize("name", UNCORRECTED)
def test_moments_are_sums_with_any_decay(name, alpha, beta, anywhere, rng) -> None:
    w, g, m = (rng.uniform(0.5, 2, 300).astype(np.float32) for _ in range(3))
    v = rng.uniform(9, 10, 300).astype(np.float32)
    placed = [anywhere.place(x) for x in (w, g, m, v)]
    call(name, get_op(name)(alpha=alpha, beta=beta, **UNCORRECTED[name]), placed)
    g, m, v = (x.astype(np.float64) for x in (g, m, v))
    assert_matches(anywhere.host(placed[2]), (alpha * m + (1 - alpha) * g).astype(np.float32))
    assert_matches(anywhere.host(placed[3]), (beta * v + (1 - beta) * g * g).astype(np.float32))
    moves = np.abs(alpha * m + (1 - alpha) * g) > 0.1  # else a decay may take them back
    assert moves.any()
    assert (anywhere.host(placed[0]) != w)[moves].all()


def test_without_a_step_lamb_corrects_nothing() -> None:
    arrays = [np.ones(3, np.float32) for _ in range(4)]
    call("LambOptimizer", get_op("LambOptimizer")(alpha=1.5, beta=1.0), arrays, None)
    assert arrays[2].tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", UNCORRECTED)
@pytest.mark.parametrize("decay", ["alpha", "beta"])
def test_a_bias_that_cannot_be_corrected_is_refused(name, decay) -> None:
    arrays = [np.ones(3, np.float32) for _ in range(4)]
    with pytest.raises(ArgumentError, match=f"{name}: {decay}: expected a number below 1, as"):
        call(name, get_op(name)(**{decay: 1.0}), arrays)
    assert all((x == 1).all() for x in arrays)
    for wrong in (-0.1, np.nan, np.inf):
        with pytest.raises(ArgumentError, match=f"{decay}: expected a finite number of at least 0"):
            get_op(name)(**{decay: wrong}, **UNCORRECTED[name])


@pytest.mark.parametrize("kind", [cto.Adam, cto.AdamW, cto.Lamb], ids=lambda kind: kind.__name__)
def test_optimizers_refuse_them_as_they_are_made(kind) -> None:
    with pytest.raises(ArgumentError, match="expected a number below 1, as biases are corrected"):
        kind([np.ones(3, np.float32)], 0.1, betas=(0.9, 1.0))
