# SPDX-License-Identifier: MIT
"""Numbers at the ends of their range: kernels give what the CPU provider gives."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from sequences import expected_outputs

from cupy_training_ops import get_op
from cupy_training_ops.dtypes import FLOAT32, INT64
from cupy_training_ops.testing.compare import assert_matches
from cupy_training_ops.testing.samples import as_tuple, flat

LAST_STEP = np.array([2**63 - 1], INT64)
ROOT = 2.0**64  # its square is beyond float32


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(FLOAT32)


def lamb(rng: np.random.Generator, size: float = 1.0, step: object = 3) -> list[object]:
    w, g, m = (normal(rng, 300) for _ in range(3))
    w *= FLOAT32.type(size)
    return [None, None, None, 0.01, step, [w], [g], [m], [np.abs(normal(rng, 300))]]


def adam(rng: np.random.Generator, size: float = 1.0, step: object = 3) -> list[object]:
    w, g, m = (normal(rng, 300) for _ in range(3))
    g *= FLOAT32.type(size)
    return [0.01, step, w, g, m, np.abs(normal(rng, 300))]


def batch_norm_of_nothing(_: np.random.Generator) -> list[object]:
    nothing, ones = np.zeros((0, 3, 2), FLOAT32), np.ones(3, FLOAT32)
    return [nothing, nothing.copy(), ones, ones, np.array([1, np.nan, np.inf], FLOAT32)]


def layer_norm(rng: np.random.Generator, size: float) -> list[object]:
    x, scale, bias = normal(rng, 4, 60), normal(rng, 60), normal(rng, 60)
    return [FLOAT32.type(size) * x, scale, bias]


def batch_norm(rng: np.random.Generator, size: float) -> list[object]:
    return [FLOAT32.type(size) * normal(rng, 9, 3), *(np.abs(normal(rng, 3)) for _ in range(4))]


CASES = {
    "last step of Lamb": ("LambOptimizer", {}, lambda rng: lamb(rng, step=LAST_STEP.copy())),
    "last step of Adam": ("AdamOptimizer", {}, lambda rng: adam(rng, step=LAST_STEP.copy())),
    "ratio beyond float32": ("LambOptimizer", {"ratio_min": 1e39}, lamb),
    "norms beyond float32": ("LambOptimizer", {"epsilon": 1e3}, lambda rng: lamb(rng, 2.0**125)),
    "square of a gradient": ("AdamOptimizer", {}, lambda rng: adam(rng, 2 * ROOT)),
    "empty batch": ("BatchNormalizationGrad", {"epsilon": 1e-5}, batch_norm_of_nothing),
    "epsilon of a layer norm": (
        "LayerNormalization",
        {"epsilon": 1e39},
        lambda rng: layer_norm(rng, 1e18),
    ),
    "variance of a layer norm": ("LayerNormalization", {}, lambda rng: layer_norm(rng, 2 * ROOT)),
    "variance of an RMS norm": (
        "SimplifiedLayerNormalization",
        {},
        lambda rng: layer_norm(rng, 2 * ROOT)[:2],
    ),
    "variance of a batch norm": ("BatchNormInternal", {}, lambda rng: batch_norm(rng, 2 * ROOT)),
    "epsilon of a batch norm": (
        "BatchNormInternal",
        {"epsilon": 1e39},
        lambda rng: batch_norm(rng, 1e18),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_extremes_are_the_same_everywhere(run, rng, name) -> None:
    op_name, attributes, make = CASES[name]
    op, inputs = get_op(op_name)(**attributes), make(rng)
    expected = expected_outputs(op, copy.deepcopy(inputs))
    result = op(*run.place_inputs(op, inputs))
    for actual, wanted in zip(flat(as_tuple(result)), flat(as_tuple(expected)), strict=True):
        if wanted is not None:
            size = np.nanmax(np.abs(np.append(wanted[np.isfinite(wanted)], 0)))
            scale = FLOAT32.type(1 / size) if wanted.dtype == FLOAT32 and size > 1 else 1
            assert_matches(run.host(actual) * scale, wanted * scale)
