# SPDX-License-Identifier: MIT
"""Reductions and gradient bookkeeping beyond 2^31 elements."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.test_large import BEYOND_INT32, need

from cupy_training_ops import get_op
from cupy_training_ops.dtypes import FLOAT16, FLOAT32

pytestmark = [pytest.mark.gpu, pytest.mark.large]

INT32 = np.dtype(np.int32)
SLACK = 2**31


def ones(shape, dtype):
    import cupy

    return cupy.ones(shape, dtype)


def everywhere(array, value) -> bool:
    """Whether all elements are `value`, looked at in pieces."""
    flat, piece = array.reshape(-1), 2**28
    return all(bool((flat[i : i + piece] == value).all()) for i in range(0, flat.size, piece))


def wrapped(n: int) -> int:
    """A sum of n ones in int32."""
    return (n + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((1, BEYOND_INT32), 1),
        ((BEYOND_INT32, 1), 1),
        ((2**27 + 1, 17), 1),
        ((BEYOND_INT32 // 2, 2), 0),
        ((65_537, 32_776), 0),
        ((2**20 + 1, 33, 64), 1),
        ((2**15, 65_539), 0),
        ((2, 2**30 + 4), 0),
    ],
)
def test_sums(shape, axis) -> None:
    n = int(np.prod(shape))
    need(4 * n + 4 * n // shape[axis] + SLACK)
    result = get_op("ReduceSumTraining")(keepdims=False)(ones(shape, INT32), (axis,))
    assert everywhere(result, wrapped(shape[axis]))


def test_lists() -> None:
    import cupy

    need(2 * BEYOND_INT32 + SLACK)
    x = ones(BEYOND_INT32, FLOAT16)
    norm = float(get_op("ReduceAllL2")(output_type=FLOAT32)([x[:5], x[5:]]))
    assert abs(norm - BEYOND_INT32**0.5) < 0.1
    assert bool(get_op("IsAllFinite")()([x]))
    x[-1] = cupy.inf
    assert not bool(get_op("IsAllFinite")()([x]))


def test_all() -> None:
    need(BEYOND_INT32 + SLACK)
    x = ones(BEYOND_INT32, np.bool_)
    assert bool(get_op("All")()(x)[0])
    x[-1] = False
    assert not bool(get_op("All")()(x)[0])


@pytest.mark.parametrize("offset", [0, 1])
def test_accumulation_and_zeroing(offset) -> None:
    need(4 * BEYOND_INT32 + SLACK)
    old_sum = ones(BEYOND_INT32 + offset, FLOAT16)[offset:]
    value = ones(BEYOND_INT32, FLOAT16)
    get_op("InPlaceAccumulator")()(old_sum, value)
    assert everywhere(old_sum, 2)
    get_op("InPlaceAccumulatorV2")()(old_sum, value)
    assert everywhere(old_sum, 3)
    get_op("InPlaceAccumulatorList")()([old_sum], [value])
    assert everywhere(old_sum, 4)
    get_op("ZeroGradient")()(old_sum, value)
    assert everywhere(old_sum, 0)


@pytest.mark.parametrize("fuse_outputs", [False, True])
def test_scaling(fuse_outputs) -> None:
    need(4 * BEYOND_INT32 + SLACK)
    x, s = ones(BEYOND_INT32, FLOAT16), ones(1, FLOAT32) * 3
    op = get_op("MixedPrecisionScale")(to=FLOAT16, fuse_outputs=fuse_outputs)
    assert all(everywhere(y, 3) for y in op(s, [x[:-3], x[-3:]]))
