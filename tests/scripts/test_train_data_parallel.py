# SPDX-License-Identifier: MIT
"""Data-parallel training on the CPU provider: ranks see one batch, and stay the same."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import in_threads, results
from train_data_parallel import train

import cupy_training_ops as cto


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-4), ("float64", 1e-9)])
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("n", [2, pytest.param(4, marks=pytest.mark.thorough)])
def test_ranks_learn_as_one_does(n, sharded, dtype, bound) -> None:
    alone, _ = train(np, cto.ProcessGroup(0, 1), 50, sharded, dtype)
    assert alone[-1] < alone[0] / 20
    together = results(in_threads(n, lambda group: train(np, group, 50, sharded, dtype)))
    for losses, checksum in together:
        np.testing.assert_allclose(losses, alone, rtol=0, atol=bound)
        assert checksum == together[0][1]
