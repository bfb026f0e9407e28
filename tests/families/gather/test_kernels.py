# SPDX-License-Identifier: MIT
"""Gather gradients where sums are hard: long segments, many of them, none; and who may run what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from references import computed

from cupy_training_ops import ArgumentError, get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name
from cupy_training_ops.families.gather import operators as ops
from cupy_training_ops.testing.compare import assert_matches, poison

floats = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)


def exact_sums(shape, indices: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row sums of dY and of |dY| in float64, axis 0."""
    sums = []
    for values in (dy.astype(FLOAT64), np.abs(dy.astype(FLOAT64))):
        dx = np.zeros(shape)
        np.add.at(dx, indices, values)
        sums.append(dx)
    return sums[0], sums[1]


def check_sums(run, shape, indices: np.ndarray, dy: np.ndarray, relative: float) -> np.ndarray:
    """GatherGrad within `relative` of the sum of |dY|, every element written; its answer."""
    out = poison(run.blank(Spec(shape, dy.dtype)))
    get_op("GatherGrad")()(shape, run.place(indices), run.place(dy), out=out)
    actual = run.host(out)
    expected, magnitude = exact_sums(shape, indices, dy)
    error = np.abs(actual.astype(FLOAT64) - expected)
    assert (error <= relative * magnitude).all(), f"worst {np.max(error / (magnitude + 1e-300))}"
    return actual


# What rounding once to T, and a tree of float32 sums, may be off by.
RELATIVE = {"float32": 1e-6, "float16": 5e-4, "float64": 1e-14, "bfloat16": 4e-3}


# ---- adversarial inputs --------------------------------------------------------------------------


@floats
@pytest.mark.parametrize("columns", [1, 3, 16])
def test_all_indices_equal(run, rng, dtype, columns) -> None:
    """Two levels of partial sums, and ends on each."""
    dy = (1 + rng.random((2500, columns))).astype(dtype)
    check_sums(run, (7, columns), np.full(2500, 5), dy, RELATIVE[dtype_name(dtype)])


@pytest.mark.parametrize("columns", [1, 8])
def test_zipf(run, rng, columns) -> None:
    """A few long segments, many short ones, rows without any."""
    indices = np.minimum(rng.zipf(1.2, 4500), 900) - 1
    dy = rng.standard_normal((4500, columns)).astype(FLOAT32)
    check_sums(run, (1000, columns), indices, dy, RELATIVE["float32"])


@floats
def test_minus_one_beside_the_last_row(run, rng, dtype) -> None:
    """One segment: negative indices count from the end before anything else."""
    indices = np.where(np.arange(90) % 2, 6, -1)
    dy = (1 + rng.random((90, 128))).astype(dtype)
    check_sums(run, (7, 128), indices, dy, RELATIVE[dtype_name(dtype)])


@pytest.mark.parametrize("columns", [4, 2000], ids=["few", "sorted or atomic"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_indices_far_out_of_range(run, rng, columns, deterministic) -> None:
    """Skipped, and nothing outside dX is written: the emulator guards every array's end."""
    indices = np.array([0, 5, -6, 2**31, -(2**31) - 1, 2**62, -(2**63), 4, 2**63 - 1])
    dy = rng.standard_normal((9, columns)).astype(FLOAT32)
    expected = np.zeros((5, columns), FLOAT32)
    expected[[0, 4]] = dy[[0, 7]]
    op = get_op("GatherGrad")(deterministic=deterministic)
    out = poison(run.blank(Spec((5, columns), FLOAT32)))
    assert_matches(run.host(op((5, columns), run.place(indices), run.place(dy), out=out)), expected)


@pytest.mark.parametrize("columns", [4, 1024], ids=["few", "sorted"])
def test_vocabulary_of_one(run, rng, columns) -> None:
    dy = rng.standard_normal((70, columns)).astype(FLOAT32)
    for indices in (np.zeros(70, np.int64), rng.integers(-1, 1, 70)):
        check_sums(run, (1, columns), indices, dy, RELATIVE["float32"])


@pytest.mark.parametrize("op", ops.OPS)
def test_no_indices_give_zeros(run, op) -> None:
    shape, indices = (3, 5), (0, 5) if op == "GatherElementsGrad" else (0, 1)
    index, dy = run.place(np.zeros(indices, np.int64)), (0, 5)
    if op == "GatherGrad":
        dy = (0, 1, 5)
    inputs = [shape, index, run.place(np.zeros(dy, FLOAT32))]
    if op == "GatherElementsGrad":
        inputs = [inputs[2], shape, index]
    out = poison(run.blank(Spec(shape, FLOAT32)))
    assert not run.host(get_op(op)()(*inputs, out=out)).any()


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 70),
    st.integers(0, 150),
    st.integers(0, 99),
)
def test_any_shape(run, batches, rows, columns, slices, seed) -> None:
    rng = np.random.default_rng(seed)
    indices = rng.integers(-rows - 1, rows + 1, slices)
    dy = rng.standard_normal((batches, slices, columns)).astype(FLOAT32)
    shape = (batches, rows, columns)
    op = get_op("GatherGrad")(axis=1)
    out = poison(run.blank(Spec(shape, FLOAT32)))
    actual = op(shape, run.place(indices), run.place(dy), out=out)
    assert_matches(run.host(actual), computed(op, shape, indices, dy))


def is_stable(run, rng, slices: int, rows: int) -> None:
    """Slices of a row are added in the order they came in: float32 sums to the last bit."""
    indices = rng.integers(0, rows, slices)
    dy = rng.standard_normal((slices, 1)).astype(FLOAT32) * FLOAT32.type(1e3)
    expected = np.zeros((rows, 1), FLOAT32)
    for i, value in zip(indices, dy, strict=True):
        expected[i] += value
    out = poison(run.blank(Spec((rows, 1), FLOAT32)))
    actual = get_op("GatherGrad")()((rows, 1), run.place(indices), run.place(dy), out=out)
    assert_matches(run.host(actual), expected, 0)


@pytest.mark.parametrize("slices", [1024, 3001, 4096, 9000])
def test_the_sort_is_stable_over_many_tiles(run, rng, slices) -> None:
    """By one block and, from 4,097 slices on, by passes."""
    is_stable(run, rng, slices, 3000)


def many_duplicates(op, rng):
    indices = np.minimum(rng.zipf(1.3, (600, 1)), 40) - 1
    dy = rng.standard_normal((600, 8)).astype(FLOAT32)
    return {
        "GatherGrad": ((40, 8), indices[:, 0], dy),
        "GatherNDGrad": ((40, 8), indices, dy),
        "GatherElementsGrad": (dy, (40, 8), np.broadcast_to(indices, dy.shape).copy()),
    }[op]


@pytest.mark.parametrize("op", ops.OPS)
def test_the_same_bits_again(run, rng, op) -> None:
    """Five runs, one of them with another workspace."""
    placed = [run.place(value) for value in many_duplicates(op, rng)]
    instances = [get_op(op)() for _ in range(2)]
    results = [run.host(instances[i % 2](*placed)).tobytes() for i in range(5)]
    assert len(set(results)) == 1


@pytest.mark.parametrize("op", ops.OPS)
@pytest.mark.parametrize("deterministic", [True, False])
def test_no_sum_depends_on_which_thread_comes_first(in_every_order, rng, op, deterministic) -> None:
    """Atomics do, which shows that the orders differ enough to be noticed."""
    inputs = many_duplicates(op, rng)
    operator = get_op(op)(deterministic=deterministic)
    results = in_every_order(lambda run: run.host(operator(*map(run.place, inputs))).tobytes())
    assert (len(set(results)) == 1) == deterministic


# ---- on a GPU only: sizes ------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("run", ["cuda"], indirect=True)
def test_a_million_duplicates_in_float16(run, rng) -> None:
    dy = (2.0**-5 * (1 + 0.1 * rng.standard_normal((1_000_000, 8)))).astype(FLOAT16)
    indices = np.where(np.arange(len(dy)) % 2, -2, 1)
    expected, magnitude = exact_sums((3, 8), indices, dy)
    out = poison(run.blank(Spec((3, 8), FLOAT16)))
    actual = run.host(get_op("GatherGrad")()((3, 8), run.place(indices), run.place(dy), out=out))
    error = np.abs(actual.astype(FLOAT64) - expected)
    assert (error <= 1e-3 * magnitude).all()


def test_many_duplicates_in_float16(run, rng) -> None:
    """A running float16 sum loses much: it stops growing at 2^-5 * 2^11."""
    dy = (2.0**-5 * (1 + 0.1 * rng.standard_normal((20_000, 2)))).astype(FLOAT16)
    check_sums(run, (3, 2), np.where(np.arange(len(dy)) % 2, -2, 1), dy, 1e-3)


LARGE_ROWS, LARGE_COLUMNS = 2**21 + 5, 1024


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("run", ["cuda"], indirect=True)
def test_more_than_2_to_the_31_elements(run) -> None:
    """Every row of dX counts its slices; the last slices lie past 2^31 elements."""
    xp, rows = run.xp, 1000
    needed = 2 * LARGE_ROWS * LARGE_COLUMNS + 2**30
    free, _ = xp.cuda.runtime.memGetInfo()
    if free < needed:
        pytest.skip(f"{needed / 2**30:.1f} GiB of GPU memory needed, {free / 2**30:.1f} free")
    dy = xp.full((LARGE_ROWS, LARGE_COLUMNS), 0.5, xp.float16)
    dy[-5:] = 2.0
    indices = xp.arange(LARGE_ROWS, dtype=xp.int64) % (rows - 1)
    indices[-5:] = -1
    dx = get_op("GatherGrad")()((rows, LARGE_COLUMNS), indices, dy)
    counts = xp.bincount(indices[:-5], minlength=rows).astype(xp.float32) * 0.5
    counts[-1] = 10
    assert (dx == counts.astype(xp.float16)[:, None]).all()


# ---- check=True ----------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [5, -6])
def test_check_refuses_an_index_out_of_range(run, rng, bad) -> None:
    index, dy = np.array([0, -5, bad, 4]), rng.standard_normal((4, 2)).astype(FLOAT32)
    square = np.stack([index, index], axis=-1)
    calls = (
        ("GatherGrad", ((5, 2), index, dy), "indices"),
        ("GatherNDGrad", ((3, 5, 2), np.stack([index * 0, index], -1), dy), r"indices\[..., 1\]"),
        ("GatherElementsGrad", (dy, (5, 2), square), "indices"),
    )
    for op, inputs, name in calls:
        placed = [run.place(value) for value in inputs]
        message = rf"{op}: {name}: expected indices from -5 to 4, got {bad}"
        with launch_log() as log, pytest.raises(ArgumentError, match=message):
            get_op(op)(check=True)(*placed)
        assert not log
        get_op(op)()(*placed)


def test_check_passes_what_is_in_range(run, rng) -> None:
    dy = rng.standard_normal((3, 2)).astype(FLOAT32)
    index = run.place(np.array([0, -5, 4]))
    checked = get_op("GatherGrad")(check=True)((5, 2), index, run.place(dy))
    assert_matches(
        run.host(checked), run.host(get_op("GatherGrad")()((5, 2), index, run.place(dy)))
    )


# ---- refusals ------------------------------------------------------------------------------------

F = np.zeros


@pytest.mark.parametrize(
    ("op", "attributes", "inputs", "message"),
    [
        ("GatherGrad", {"axis": 2}, ((3, 4), F(2, int), F((2, 4))), "axis: expected an axis"),
        ("GatherGrad", {}, ((), F(2, int), F(2)), "axis: expected arrays of at"),
        ("GatherGrad", {"axis": 1}, ((3, 4), F(2, int), F((2, 4))), r"dY: expected shape \(3, 2\)"),
        ("GatherGrad", {}, ((3,), F(2, np.int16), F(2)), "indices: expected dtype int64, int32"),
        ("GatherGrad", {}, ((-3,), F(2, int), F(2)), "shape: expected extents of at least 0"),
        ("GatherNDGrad", {}, ((3,), F((), int), F(())), "indices: expected a rank above batch_d"),
        ("GatherNDGrad", {"batch_dims": 1}, ((2, 3), F(2, int), F(2)), "a rank above batch_dims"),
        ("GatherNDGrad", {"batch_dims": -1}, ((2,), F((2, 1), int), F(2)), "batch_dims: .* got -1"),
        ("GatherNDGrad", {"batch_dims": 1}, ((2,), F((2, 1), int), F(2)), "batch_dims: .* got 1"),
        ("GatherGrad", {}, ((2**63,), F(2, int), F(2)), r"shape: expected .* below 2\^63, got"),
        ("GatherGrad", {"check": True}, ((3, 4), F(2, int) + 9, F((2, 5))), "dY: expected shape"),
        ("GatherNDGrad", {}, ((3, 4), F((2, 3), int), F(2)), "indices: expected 1 to 2 numbers"),
        ("GatherNDGrad", {}, ((3, 4), F((2, 0), int), F(2)), "indices: expected 1 to 2 numbers"),
        (
            "GatherNDGrad",
            {"batch_dims": 1},
            ((3, 4), F((2, 5, 1), int), F((2, 5))),
            r"indices: expected batches \(3,\)",
        ),
        ("GatherNDGrad", {}, ((3, 4), F((2, 1), int), F((2, 3))), r"update: expected shape \(2, 4"),
        ("GatherElementsGrad", {}, (F((2, 3)), (4, 3), F((3, 2), int)), "indices: expected dY's"),
        ("GatherElementsGrad", {}, (F((2, 4)), (4, 3), F((2, 4), int)), "a shape within"),
        ("GatherElementsGrad", {}, (F(2), (4, 3), F(2, int)), "a shape within"),
        ("GatherElementsGrad", {"axis": -3}, (F((2, 3)), (4, 3), F((2, 3), int)), "axis: expected"),
    ],
)
def test_refusals(op, attributes, inputs, message) -> None:
    with pytest.raises((ArgumentError, TypeError), match=message):
        get_op(op)(**attributes)(*inputs)


# ---- upstream's own answers ----------------------------------------------------------------------

ANSWERS = np.load(Path(__file__).parents[2] / "data" / "ort_cuda_answers.npz")
# Tolerances of spec/tensor_gist_comm.md, section 8.
RECORDED = {
    "GatherGrad[f4,ids]": 2e-6,
    "GatherGrad[f4,zipf]": 1e-5,
    "GatherGrad[f4,same]": 1e-5,
    "GatherGrad[f2,ids]": 4e-3,
    "GatherGrad[f2,zipf]": 1e-3,
    "GatherGrad[f2,same]": 1e-3,
    "GatherElementsGrad[f4]": 2e-6,
    "GatherNDGrad[f4]": 2e-6,
}


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("case", RECORDED)
def test_upstream_answers(anywhere, case, deterministic) -> None:
    """Within the differences that upstream's own order of additions and rounding explains."""
    prefix = f"{case}|in|"
    inputs = [ANSWERS[name] for name in ANSWERS.files if name.startswith(prefix)]
    placed = [
        tuple(a.tolist()) if a.dtype == np.int64 and a.shape == (2,) else anywhere.place(a)
        for a in inputs
    ]
    expected = ANSWERS[f"{case}|out0"]
    out = poison(anywhere.blank(Spec(expected.shape, expected.dtype)))
    op = get_op(case.partition("[")[0])(deterministic=deterministic)
    assert_matches(anywhere.host(op(*placed, out=out)), expected, RECORDED[case])


def test_every_recorded_case_is_compared() -> None:
    cases = {name.partition("|")[0] for name in ANSWERS.files}
    assert {case for case in cases if case.startswith("Gather")} == set(RECORDED)
