# SPDX-License-Identifier: MIT
"""Gather gradients where sums are hard: long segments, many of them, none; and who may run what."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cupy_training_ops import ArgumentError, get_op
from cupy_training_ops.contract import Spec
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOAT64, FLOATS, INT64, dtype_name
from cupy_training_ops.ops import gather as ops
from cupy_training_ops.planning import scatter
from cupy_training_ops.planning.scatter import Digit, Sizes
from cupy_training_ops.runtime.launch import launch_log
from cupy_training_ops.runtime.plan import Device
from cupy_training_ops.runtime.source import load
from cupy_training_ops.testing.compare import assert_matches, poison

H200 = Device(132, (9, 0))
SORT = ["gather__starts", "gather__sum_nodes", "gather__sum_rows"]
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
    assert_matches(run.host(actual), op.cpu_function()(shape, indices, dy, axis=1))


def test_the_sort_is_stable_over_many_tiles(run, rng) -> None:
    """Slices of a row are added in the order they came in: float32 sums to the last bit."""
    slices, rows = 9000, 3000
    indices = rng.integers(0, rows, slices)
    dy = rng.standard_normal((slices, 1)).astype(FLOAT32) * FLOAT32.type(1e3)
    expected = np.zeros((rows, 1), FLOAT32)
    for i, value in zip(indices, dy, strict=True):
        expected[i] += value
    out = poison(run.blank(Spec((rows, 1), FLOAT32)))
    actual = get_op("GatherGrad")()((rows, 1), run.place(indices), run.place(dy), out=out)
    assert_matches(run.host(actual), expected, 0)


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
    """What a running float16 sum loses: it stops growing at 2^-5 * 2^11."""
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


# ---- choices: pure functions of shapes, dtypes, alignment and device -----------------------------


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (1, [(0, 1)]),
        (511, [(0, 9)]),
        (512, [(0, 5), (5, 5)]),
        (50257, [(0, 8), (8, 8)]),
        (128256, [(0, 9), (9, 8)]),
        (2**26, [(0, 9), (9, 9), (18, 9)]),
        (2**40, [(0, 9), (9, 9), (18, 9), (27, 9), (36, 5)]),
    ],
)
def test_digits(rows, expected) -> None:
    """They hold the key `rows` of an index out of range."""
    found = scatter.digits(rows)
    assert found == tuple(Digit(*digit) for digit in expected)
    assert sum(digit.bits for digit in found) == rows.bit_length()


@pytest.mark.parametrize(
    ("slices", "expected"),
    [(1, ()), (64, ()), (65, (2,)), (32768, (1024, 32)), (2**26, (2**21, 2**16, 2048, 64))],
)
def test_levels(slices, expected) -> None:
    assert scatter.levels(slices) == expected


@pytest.mark.parametrize(
    ("batches", "n", "runs", "packets", "grid", "block"),
    [
        (1, 50257, 256, 2, (25129, 1, 1), (128, 2)),
        (1, 67108864, 1, 1, (262144, 1, 1), (1, 256)),
        (1, 3, 9_633_792, 1, (3 * 37632, 1, 1), (256, 1)),
        (100_000, 4, 1, 1, (1563, 1, 1), (1, 256)),
        (2**20, 2**20, 1, 1, (2**24 - 4096, 1, 257), (1, 256)),
        (2, 2**33, 1, 1, (2**25, 1, 2), (1, 256)),
    ],
)
def test_grids(batches, n, runs, packets, grid, block) -> None:
    """Every item of every batch has its thread, and 32 bits hold an item's number in its fold."""
    config, items = scatter.spread(batches, n, runs, packets)
    assert (config.grid, config.block) == (grid, block)
    assert items["fold"] == 1 or items["fold"] * items["n"] < 2**32
    assert config.grid[2] * items["fold"] >= batches
    assert config.grid[0] // items["column_blocks"] * block[1] >= items["fold"] * n
    assert items["column_blocks"] * block[0] * packets >= runs


@pytest.mark.parametrize(("slices", "expected"), [(1, 4), (799, 4), (800, 1), (2**40, 1)])
def test_short_rows_share_a_thread(slices, expected) -> None:
    """Fewer than 32 slices in four rows on the average."""
    assert scatter.rows_of_a_thread(Sizes(1, slices, 100, 8)) == expected


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (Sizes(1, 32, 32, 32), True),
        (Sizes(2, 32, 32, 64), False),
        (Sizes(1, 256, 1, 256), True),
        (Sizes(1, 257, 1, 1), False),
    ],
)
def test_few_slices_take_one_launch(sizes, expected) -> None:
    assert scatter.are_few(sizes) is expected


PLANS = [
    # shape, K, deterministic, offset of dY, symbols after the sort
    ((50257, 1024), 32768, True, 0, ["starts", "sum_nodes", "sum_nodes", "sum_rows"]),
    ((50257, 1024), 60, True, 0, ["starts", "sum_rows"]),
    ((50257, 1024), 60, True, 1, ["starts", "sum_rows__scalar"]),
    ((50257, 1023), 70, True, 0, ["starts", "sum_nodes__scalar", "sum_rows__scalar"]),
]


@pytest.mark.parametrize(("shape", "slices", "deterministic", "offset", "after"), PLANS)
def test_stages_of_the_sorted_way(shape, slices, deterministic, offset, after) -> None:
    symbols = planned(shape, slices, FLOAT16, deterministic, offset == 0)
    sort = ["gather_grad__keys", "gather__scatter", "gather__count", "gather__scatter"]
    assert symbols == sort + [f"gather__{stage}" for stage in after]


@pytest.mark.parametrize(
    ("slices", "dtype", "aligned", "expected"),
    [
        (32768, FLOAT32, True, None),
        (4096, FLOAT32, True, ["gather__zero", "gather_grad__atomic"]),
        (4097, FLOAT32, True, None),
        (9, FLOAT16, True, None),
        (0, FLOAT16, True, ["gather__zero"]),
    ],
)
def test_atomics_are_for_little_data(slices, dtype, aligned, expected) -> None:
    symbols = planned((50257, 1024), slices, dtype, False, aligned)
    assert symbols == (expected or planned((50257, 1024), slices, dtype, True, aligned))


def planned(shape, slices, dtype, deterministic, aligned) -> list[str]:
    op = get_op("GatherGrad")(deterministic=deterministic)
    dy, dx = Spec((slices, *shape[1:]), dtype, aligned), Spec(shape, dtype, aligned)
    return [
        launch.symbol for launch in op.plan(H200, shape, Spec((slices,), INT64), dy, dx).launches
    ]


@pytest.mark.parametrize(
    ("shape", "indices", "axis", "symbol"),
    [
        ((65536, 1024), (65536, 1024), 0, "gather_elements_grad__atomic_strips"),
        ((65536, 1024), (65536, 1024), 1, "gather_elements_grad__atomic"),
        ((65536, 31), (65536, 31), 0, "gather_elements_grad__atomic"),
        ((8, 512, 64), (8, 900, 64), 1, "gather_elements_grad__atomic_strips"),
    ],
)
def test_atomic_additions_of_elements(shape, indices, axis, symbol) -> None:
    op = get_op("GatherElementsGrad")(axis=axis, deterministic=False)
    dy, dx = Spec(indices, FLOAT32), Spec(shape, FLOAT32)
    plan = op.plan(H200, dy, shape, Spec(indices, INT64), dx)
    assert [launch.symbol for launch in plan.launches] == ["gather__zero", symbol]
    assert plan.workspace_nbytes == 0


@pytest.mark.parametrize(
    ("indices", "shape", "axis", "expected"),
    [
        ((4, 5, 6), (9, 5, 6), 0, [(4, 0), (30, 1)]),
        ((4, 9, 6), (4, 5, 6), 1, [(4, 30), (9, 0), (6, 1)]),
        ((4, 5, 9), (4, 5, 6), 2, [(20, 6), (9, 0)]),
        ((2, 3, 4, 5), (2, 7, 4, 5), 0, [(2, 0), (60, 1)]),
        ((2, 3, 3, 5), (2, 7, 4, 5), 3, [(2, 140), (3, 20), (3, 5), (5, 0)]),
        ((1, 3, 1), (2, 7, 5), 1, [(3, 0)]),
        ((1, 1), (3, 4), 0, [(1, 0)]),
    ],
)
def test_coalesced(indices, shape, axis, expected) -> None:
    assert ops.coalesced(indices, shape, axis) == expected


def test_workspace_is_a_small_part_of_the_data() -> None:
    op = get_op("GatherGrad")()
    dy, dx = Spec((32768, 1024), FLOAT32), Spec((50257, 1024), FLOAT32)
    nbytes = op.plan(H200, dx.shape, Spec((32768,), INT64), dy, dx).workspace_nbytes
    assert nbytes < 16 * 32768 + 4 * 50257 + dy.nbytes / 30 + 2**17


def test_keys_of_64_bits(run, rng, monkeypatch) -> None:
    """What rows or slices past 2^32 take, here made to be taken."""
    monkeypatch.setattr(scatter, "MOST_32_BIT", 20)
    assert Sizes(1, 21, 4, 1).key == np.uint64
    indices, dy = rng.integers(-30, 30, 300), rng.standard_normal((2, 300, 3)).astype(FLOAT32)
    out = poison(run.blank(Spec((2, 30, 3), FLOAT32)))
    op = get_op("GatherGrad")(axis=1)
    actual = op((2, 30, 3), run.place(indices), run.place(dy), out=out)
    assert_matches(run.host(actual), op.cpu_function()((2, 30, 3), indices, dy, axis=1))


def test_python_and_cuda_share_their_constants() -> None:
    """`constexpr int NAME = number` in the source, and NAME in Python, say the same."""
    text = load("gather").code
    written = dict(re.findall(r"constexpr int (\w+) = (\d+);", text))
    written["SORT_TILE"] = int(written["SORT_THREADS"]) * int(written["SORT_ITEMS"])
    dims = ("TILE_COLUMNS", "MOST_DIMS")
    names = ("SORT_THREADS", "SORT_TILE", "FANOUT", "ATOMIC_ITEMS", "ZERO_PACKETS")
    assert {n: getattr(scatter, n) for n in names} == {n: int(written[n]) for n in names}
    assert {n: getattr(ops, n) for n in dims} == {n: int(written[n]) for n in dims}
    assert 1 << scatter.DIGIT_BITS == scatter.SORT_THREADS  # a thread for each digit


# ---- upstream's own answers ----------------------------------------------------------------------

ANSWERS = np.load(Path(__file__).parent.parent / "data" / "ort_cuda_answers.npz")
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
