# SPDX-License-Identifier: MIT
"""Elements that each stay in their column: which plans sort columns, and what their kernels add."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from references import computed

from cupy_training_ops import get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOAT64, INT64, dtype_name
from cupy_training_ops.families.gather import plan
from cupy_training_ops.plan import Device
from cupy_training_ops.testing.compare import poison

H200 = Device(132, (9, 0), 227 * 1024)
RELATIVE = {"float32": 1e-6, "float16": 6e-4, "bfloat16": 5e-3}  # to the sum of magnitudes


def symbols(shape, indices, axis=0, dtype=FLOAT32, device=H200) -> list[str]:
    op = get_op("GatherElementsGrad")(axis=axis)
    dy, dx = Spec(indices, dtype), Spec(shape, dtype)
    return [step.symbol for step in op.plan(device, dy, shape, Spec(indices, INT64), dx).steps]


@pytest.mark.parametrize(
    ("shape", "indices", "axis", "dtype", "expected"),
    [
        ((65536, 1024), (65536, 1024), 0, FLOAT32, True),
        ((65536, 1024), (65536, 1024), 0, FLOAT16, True),
        ((65536, 1024), (65536, 1024), 0, FLOAT64, False),
        ((65537, 1024), (65536, 1024), 0, FLOAT32, False),  # more buckets than lanes
        ((65536, 1024), (65536, 1024), 1, FLOAT32, False),  # no column is known
        ((65536, 1024), (65536, 15), 0, FLOAT32, False),
        ((65536, 2048), (1023, 2048), 0, FLOAT32, False),
        ((2048, 1024), (65536, 1024), 0, FLOAT32, False),  # one warp for 65,536 rows
        ((8, 512, 64, 8), (8, 900, 64, 8), 1, FLOAT32, True),
        ((8, 512, 64, 8), (8, 900, 64, 7), 1, FLOAT32, False),
    ],
)
def test_which_elements_are_sorted_in_their_columns(shape, indices, axis, dtype, expected) -> None:
    name = "gather_elements_grad__"
    own = [f"{name}count_buckets", f"{name}move_to_buckets", "gather__sum_buckets"]
    assert (symbols(shape, indices, axis, dtype) == own) is expected


def test_little_shared_memory_sorts_all_elements() -> None:
    few = replace(H200, max_shared_nbytes=64 * 1024)
    assert "gather__sum_buckets" not in symbols((65536, 1024), (65536, 1024), device=few)


def test_memory_is_that_of_elements_and_rows() -> None:
    op, shape = get_op("GatherElementsGrad")(), (65536, 1024)
    dy = Spec(shape, FLOAT32)
    planned = op.plan(H200, dy, shape, Spec(shape, INT64), Spec(shape, FLOAT32))
    assert planned.workspace_nbytes < 3 * dy.nbytes


@pytest.fixture
def few_are_many(monkeypatch) -> None:
    """The way of many elements, of any number."""
    for name in ("LONG_SORT", "MIN_COLUMN_ROWS"):
        monkeypatch.setattr(plan, name, 1)


CASES = {
    # shape, shape of the indices, axis
    "whole tiles": ((4096, 32), (512, 32), 0),
    "ends": ((4500, 33), (700, 18), 0),
    "outer": ((3, 900, 4, 6), (3, 100, 4, 6), 1),
    "outer and inner": ((2, 3, 700, 5, 8), (2, 3, 40, 5, 8), 2),
    "one row": ((1, 64), (300, 64), 0),
    "several parts": ((9000, 16), (3000, 16), 0),
}


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize("kind", ["uniform", "same", "skewed", "out of range", "int32"])
@pytest.mark.parametrize("case", CASES)
def test_sums(run, rng, case, kind) -> None:
    shape, of_indices, axis = CASES[case]
    extent = shape[axis]
    indices = {
        "uniform": rng.integers(-extent, extent, of_indices),
        "same": np.full(of_indices, extent - 1),
        "skewed": np.minimum(rng.zipf(1.2, of_indices), extent) - 1,
        "out of range": rng.integers(-3 * extent, 3 * extent, of_indices),
        "int32": rng.integers(-extent, extent, of_indices, dtype=np.int32),
    }[kind]
    check(run, rng, shape, indices, axis, FLOAT32)


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize("dtype", [FLOAT16, np.dtype("bfloat16")], ids=dtype_name)
@pytest.mark.parametrize("width", [32, 33])
def test_narrow_sums(run, rng, dtype, width) -> None:
    check(run, rng, (5000, width), rng.integers(0, 5000, (600, width)), 0, dtype)


def check(run, rng, shape, indices, axis, dtype) -> None:
    """Sums within rounding, every element written, the same bits again."""
    op = get_op("GatherElementsGrad")(axis=axis)
    dy = rng.standard_normal(indices.shape).astype(dtype)
    args = run.place(dy), shape, run.place(indices)
    out, again = (poison(run.blank(Spec(shape, dy.dtype))) for _ in range(2))
    with launch_log() as log:
        op(*args, out=out)
    assert "gather__sum_buckets" in str(log)
    op(*args, out=again)
    actual = run.host(out)
    assert actual.tobytes() == run.host(again).tobytes()
    wide = dy.astype(FLOAT64)
    expected, magnitude = (computed(op, x, shape, indices) for x in (wide, np.abs(wide)))
    error = np.abs(actual.astype(FLOAT64) - expected)
    assert (error <= RELATIVE[dtype_name(dtype)] * magnitude).all()


@pytest.mark.usefixtures("few_are_many")
def test_infinities_and_nan_stay_where_they_belong(run) -> None:
    """An index out of range adds nothing, whatever stands there."""
    dy = np.ones((40, 16), np.float32)
    indices = np.arange(40)[:, None] + np.zeros((1, 16), np.int64)
    indices[7], dy[7] = 10**12, np.nan
    dy[3, 2], dy[5, 1] = np.inf, np.nan
    op = get_op("GatherElementsGrad")()
    actual = run.host(op(run.place(dy), (60, 16), run.place(indices)))
    np.testing.assert_array_equal(actual, computed(op, dy, (60, 16), indices))
