# SPDX-License-Identifier: MIT
"""Fragments of tensor cores: their products are those of plain matrices, in every layout."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from probe.tensor_core_probe import SIDE, ProbeFragments, ProbeTf32, probe_fragments, probe_tf32

from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32
from cupy_training_ops.testing.compare import assert_matches

LAYOUTS = list(itertools.product((False, True), repeat=2))


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32], ids=str)
@pytest.mark.parametrize("by_shuffles", [False, True])
def test_products_are_those_of_matrices(run, rng, dtype, by_shuffles) -> None:
    depth = 32 // dtype.itemsize
    for by_rows, by_columns in LAYOUTS:
        shapes = (SIDE, depth), (depth, SIDE), (SIDE, SIDE)
        a, b, c = (rng.standard_normal(shape).astype(FLOAT32) for shape in shapes)
        a, b = (probe_tf32(x) if dtype == FLOAT32 else x.astype(dtype) for x in (a, b))
        op = ProbeFragments(by_rows=by_rows, by_columns=by_columns, by_shuffles=by_shuffles)
        assert_matches(run.host(op(*map(run.place, (a, b, c)))), probe_fragments(a, b, c), 1e-5)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32], ids=str)
@pytest.mark.parametrize("by_shuffles", [False, True])
def test_each_element_has_its_place(run, dtype, by_shuffles) -> None:
    """Powers of two tell every pair of elements from all others."""
    depth = 32 // dtype.itemsize
    for k in (0, 1, depth // 2, depth - 1):
        a, b = np.zeros((SIDE, depth), dtype), np.zeros((depth, SIDE), dtype)
        a[:, k] = 2.0 ** np.arange(-8, 8)
        b[k] = np.arange(1, SIDE + 1)
        c = np.zeros((SIDE, SIDE), FLOAT32)
        op = ProbeFragments(by_rows=k % 2 == 0, by_columns=k > 1, by_shuffles=by_shuffles)
        assert_matches(run.host(op(*map(run.place, (a, b, c)))), probe_fragments(a, b, c), 0)


def test_tf32_rounds_ties_away_from_zero(run, rng) -> None:
    ties = np.array([1 + 2.0**-11, -1 - 2.0**-11, 1 + 2.0**-12, 3.0e38, 0, np.inf, -np.inf])
    x = np.concatenate([ties, rng.standard_normal(500) * 1e3]).astype(FLOAT32)
    y = run.host(ProbeTf32()(run.place(x)))
    assert_matches(y, probe_tf32(x), 0)
    assert y[0] == 1 + 2.0**-10
    assert y[1] == -y[0]
