# SPDX-License-Identifier: MIT
"""Rows of scores that registers do not hold: what does not fit waits in shared memory."""

from __future__ import annotations

import numpy as np
import pytest
from references import computed

from cupy_training_ops import get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT64, dtype_name
from cupy_training_ops.families.softmax.samples import logits
from cupy_training_ops.plan import Device
from cupy_training_ops.testing.compare import assert_matches

from .calls import BOTH, H200, call

A100, T4 = Device(108, (8, 0), 163 * 1024), Device(40, (7, 5), 64 * 1024)
IGNORED = -100


@pytest.mark.parametrize(
    ("device", "rows", "n_classes", "dtype", "expected"),
    [
        (H200, 8192, 131_072, BFLOAT16, ("waiting_rows", 132, 196_608)),
        (H200, 8192, 131_080, BFLOAT16, ("rows", 8192, 0)),
        (H200, 8192, 65_544, FLOAT16, ("waiting_rows", 132, 131_072)),
        (H200, 8192, 65_536, FLOAT16, ("rows", 8192, 0)),
        (H200, 5, 65_536, FLOAT32, ("waiting_rows", 5, 196_608)),
        (H200, 8192, 16_384, FLOAT64, ("waiting_rows", 132, 65_536)),
        (A100, 8192, 131_072, BFLOAT16, ("rows", 8192, 0)),
        (A100, 8192, 98_304, BFLOAT16, ("waiting_rows", 108, 131_072)),
        (T4, 8192, 65_544, FLOAT16, ("rows", 8192, 0)),
    ],
    ids=str,
)
def test_rows_wait_where_there_is_room(device, rows, n_classes, dtype, expected) -> None:
    scores, labels = Spec((rows, n_classes), dtype), Spec((rows,), INT64)
    op, given = get_op(BOTH)(), (scores, labels, None, None, 1.0)
    launch, _ = op.plan(device, *given, *op.infer(*given)).steps
    config = launch.config
    suffix = launch.symbol.removeprefix("cross_entropy__loss_and_gradient_")
    assert (suffix, config.grid[0], config.shared_nbytes) == expected


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=dtype_name)
@pytest.mark.parametrize("beyond", [4, 1, 9001, 16_384], ids=str)
def test_a_block_walks_through_rows(run, rng, beyond, dtype) -> None:
    """More rows than the multiprocessors of what is emulated; some do not count, one is NaN."""
    rows, n_classes = 11, 2**17 // dtype.itemsize + beyond
    x = logits(rng, (rows, n_classes), dtype)
    labels = rng.integers(0, n_classes, rows)
    labels[:5] = 0, n_classes - 1, IGNORED, n_classes, 1
    weights = rng.uniform(0.5, 2, n_classes).astype(dtype)
    given = (x, labels, weights, IGNORED)
    expected = computed(get_op(BOTH)(reduction="none"), *given)
    found = call(run, BOTH, *given, reduction="none")
    for actual, wanted in zip(found, expected, strict=True):
        assert_matches(actual, wanted)
    over = run.place(x)
    call(run, BOTH, over, *given[1:], reduction="none", out=(None, over))
    np.testing.assert_array_equal(run.host(over), found[1])
