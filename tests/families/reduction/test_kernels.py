# SPDX-License-Identifier: MIT
"""Reduction kernels: every division of the work, lists of any length, the same bits always."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from halves import assert_rounded_once
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from references import computed

from cupy_training_ops import get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name
from cupy_training_ops.families.reduction import operators as reduction
from cupy_training_ops.families.reduction.operators import Pass, column_block, passes
from cupy_training_ops.families.reduction.samples import numbers
from cupy_training_ops.plan import Device
from cupy_training_ops.planning.multi_tensor import batches
from cupy_training_ops.testing.compare import assert_matches, poison

H200 = Device(132, (9, 0))
INT32 = np.dtype(np.int32)

floats = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)


# ---- passes of ReduceSumTraining -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "axes", "expected"),
    [
        ((65536, 1024), (1,), [(65536, 1024, 1)]),
        ((65536, 1024), (0,), [(1, 65536, 1024)]),
        ((4, 512, 30528), (0, 1), [(1, 2048, 30528)]),
        ((30528, 4, 512), (1, 2), [(30528, 2048, 1)]),
        ((5, 1, 7, 1), (1, 3), [(1, 1, 35)]),
        ((2, 3, 5), (), [(1, 1, 30)]),
        ((8, 3, 5, 2), (0, 3), [(1, 8, 30), (15, 2, 1)]),
        ((2, 3, 5, 8), (0, 3), [(30, 8, 1), (1, 2, 15)]),
        ((), (), [(1, 1, 1)]),
    ],
)
def test_passes_shrink_most_first(shape, axes, expected) -> None:
    assert list(passes(shape, axes)) == [Pass(*p) for p in expected]


@given(
    hnp.array_shapes(min_dims=0, max_dims=8, min_side=1, max_side=4), st.integers(0, 255), st.data()
)
def test_passes_make_the_sum(shape, chosen, data) -> None:
    axes = tuple(a for a in range(len(shape)) if chosen >> a & 1)
    x = np.random.default_rng(data.draw(st.integers(0, 2**32))).integers(-9, 9, shape)
    y = x
    for p in passes(shape, axes):
        y = y.reshape(p.A, p.R, p.B).sum(axis=1)
    np.testing.assert_array_equal(y.ravel(), x.sum(axis=axes).ravel())


@given(st.integers(1, 10**7), st.integers(1, 10**7), st.integers(1, 10**7))
def test_column_blocks_cover_their_columns_and_fit(n_slabs, n_rows, packets) -> None:
    n_tiles, (x, y, z) = column_block(n_slabs, n_rows, packets)
    assert (n_tiles - 1) * x < packets <= n_tiles * x
    assert x * y * z <= reduction.THREADS
    assert 1 <= y <= n_rows
    assert 1 <= z <= min(64, n_slabs)


def planned(shape, axes, dtype=FLOAT32, aligned=True):
    """Symbol and blocks of each launch on an H200."""
    op = get_op("ReduceSumTraining")(keepdims=False)
    x = Spec(shape, dtype, aligned)
    plan = op.plan(H200, x, axes, *op.infer(x, axes))
    names = [launch.symbol.partition("__")[2] for launch in plan.steps]
    return list(zip(names, (launch.config.grid[0] for launch in plan.steps), strict=True))


@pytest.mark.parametrize(
    ("shape", "axes", "expected"),
    [
        ((65536, 1024), (1,), [("rows", 8192)]),
        ((65536, 1024), (0,), [("columns", 1056)]),
        ((1, 2**26), (1,), [("long_rows", 1056)]),
        ((8, 2**23), (1,), [("long_rows", 1056)]),
        ((5000, 13000), (1,), [("long_rows", 5000)]),
        ((2**24, 4), (1,), [("short_rows", 16384)]),
        ((2**24, 5), (1,), [("rows", 65536)]),
        ((2**24, 12), (1,), [("rows", 131072)]),
        ((2**16, 128), (1,), [("short_rows", 2048)]),
        ((2**16, 256), (1,), [("rows", 8192)]),
        ((2**20, 1025), (0,), [("single_columns", 1025)]),
        ((16, 2**22), (0,), [("columns", 4096)]),
        ((64, 64, 64, 64), (0, 2), [("columns", 1024), ("columns", 64)]),
    ],
)
def test_the_plan_suits_the_shape(shape, axes, expected) -> None:
    actual = planned(shape, axes)
    assert [name for name, _ in actual] == [name for name, _ in expected]
    for (_, blocks), (_, about) in zip(actual, expected, strict=True):
        assert about / 2 <= blocks <= about * 2, actual


def test_an_unaligned_array_has_single_columns() -> None:
    assert planned((4096, 64), (0,))[0][0] == "columns"
    assert planned((4096, 64), (0,), aligned=False)[0][0] == "single_columns"


# ---- kernels at the ends of packets, warps, blocks and spans -------------------------------------


def check_sum(run, x, axes, offset=0) -> None:
    op = get_op("ReduceSumTraining")()
    expected = computed(op, x, axes)
    assert_matches(run.host(op(run.place(x, offset), axes)), expected)


@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT64, INT32], ids=dtype_name)
def test_rows_of_every_length(run, rng, dtype, offset) -> None:
    for length in (1, 2, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 127, 129, 255, 257, 1023, 1025):
        check_sum(run, numbers(rng, (5, length), dtype), (1,), offset)


@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT64, INT32], ids=dtype_name)
def test_short_rows_at_the_ends_of_blocks(run, rng, dtype) -> None:
    for packets in (1, 2, 8, 32):
        length, of_block = packets * 16 // dtype.itemsize, 1024 // packets
        for n_rows in (1, of_block - 1, of_block + 1):
            check_sum(run, numbers(rng, (n_rows, length), dtype), (1,))


@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32, INT32], ids=dtype_name)
def test_columns_of_every_height_and_width(run, rng, dtype) -> None:
    heights, widths = (2, 3, 5, 31, 33, 257), (2, 8, 24, 33, 136)
    for height, width in itertools.product(heights, widths):
        check_sum(run, numbers(rng, (height, width), dtype), (0,))
        check_sum(run, numbers(rng, (3, height, width), dtype), (1,))


def test_half_sums_of_two_passes_are_rounded_once(anywhere, rng) -> None:
    x = rng.uniform(0.5, 2, (6, 60, 20, 8)).astype(FLOAT16)
    axes = (0, 2)
    assert len(list(passes(x.shape, axes))) == 2
    result = get_op("ReduceSumTraining")(keepdims=False)(anywhere.place(x), axes)
    assert_rounded_once(anywhere.host(result), x.astype(FLOAT64).sum(axes))


COPIES = (
    ((9, 5003), (), {"noop_with_empty_axes": True}),
    ((1, 8193, 1), (0, -1), {"keepdims": False}),
    ((), (), {}),
)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(("shape", "axes", "attributes"), COPIES)
@pytest.mark.parametrize("dtype", [*FLOATS, INT32], ids=dtype_name)
def test_where_nothing_is_added_bits_are_copied(
    anywhere, rng, dtype, shape, axes, attributes, offset
) -> None:
    """Also of -0.0, of subnormals and of every NaN."""
    x = np.frombuffer(rng.bytes(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)
    op = get_op("ReduceSumTraining")(**attributes)
    (spec,) = op.infer(Spec(shape, dtype), axes)
    out = poison(anywhere.blank(spec, offset))
    op(anywhere.place(x, offset), axes, out=out)
    assert anywhere.host(out).tobytes() == x.tobytes()


@pytest.mark.parametrize("shape", [(2, 70_003), (70_003, 2), (20_001, 16)])
def test_divided_sums_leave_their_tickets_at_zero(run, rng, shape) -> None:
    """One operator, and shapes in between that divide the workspace differently."""
    op = get_op("ReduceSumTraining")()
    axis = int(shape[1] > shape[0])
    for some in (shape, (3, 9000), shape, (9000, 8), shape):
        x = numbers(rng, some, INT32)
        reduced = (axis,) if some == shape else (int(some[1] > some[0]),)
        assert_matches(run.host(op(run.place(x), reduced)), computed(op, x, reduced), 0)


def fixed_sums(run) -> list[bytes]:
    """The bits of sums of the same normal numbers, at the same places."""
    results = []
    for shape, axis in (((3, 50_000), 1), ((9000, 24), 0), ((400, 300), 1)):
        x = np.random.default_rng(7).standard_normal(shape).astype(FLOAT32)
        results.append(run.host(get_op("ReduceSumTraining")()(run.place(x), (axis,))).tobytes())
    xs = [np.random.default_rng(i).standard_normal(999 * i).astype(FLOAT32) for i in range(40)]
    return [*results, run.host(get_op("ReduceAllL2")()([run.place(x) for x in xs])).tobytes()]


def test_sums_have_the_same_bits_again(run) -> None:
    assert fixed_sums(run) == fixed_sums(run)


def test_the_order_of_threads_changes_no_bit(in_every_order) -> None:
    first, *others = in_every_order(fixed_sums)
    assert all(other == first for other in others)


@pytest.mark.parametrize("x", FLOATS, ids=dtype_name)
@pytest.mark.parametrize("y", FLOATS, ids=dtype_name)
def test_norms_of_every_type_combination(run, rng, x, y) -> None:
    op = get_op("ReduceAllL2")(output_type=y)
    xs = [numbers(rng, (n,), x) for n in (3, 1000, 0, 77)]
    result = op([run.place(item) for item in xs])
    assert_matches(run.host(result), computed(op, xs))


# ---- finiteness: every bit pattern ---------------------------------------------------------------

MODES = ({}, {"isinf_only": True}, {"isnan_only": True})


@pytest.mark.parametrize("attributes", MODES, ids=["all", "inf", "nan"])
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=dtype_name)
def test_every_16_bit_pattern(run, rng, dtype, attributes) -> None:
    """All that pass together; then some that fail, each alone among those, at a random place."""
    op = get_op("IsAllFinite")(**attributes)
    patterns = np.arange(65_536, dtype=np.uint16).view(dtype)
    test = {0: lambda v: ~np.isfinite(v), 1: np.isinf, 2: np.isnan}[MODES.index(attributes)]
    fails = np.asarray(test(patterns.astype(FLOAT32)))
    passing, failing = rng.permutation(patterns[~fails]), patterns[fails]
    placed = run.place(passing)
    assert bool(run.host(op([placed])))
    some = np.unique([0, len(failing) - 1, *rng.integers(0, len(failing), 6)])
    for value in failing[some]:
        one = passing[:5000].copy()
        one[rng.integers(0, one.size)] = value
        assert not run.host(op([placed, run.place(one, 1)]))
        assert bool(run.host(op([placed])))  # nothing is left of the failure before


@pytest.mark.parametrize("n", [1, 15, 16, 17, 4095, 4097])
def test_a_failure_at_either_end_is_found(run, rng, n) -> None:
    for dtype, offset in itertools.product(FLOATS, (0, 1)):
        for place in (0, n - 1):
            x = numbers(rng, (n,), dtype)
            x[place] = rng.choice([np.nan, np.inf, -np.inf])
            assert not run.host(get_op("IsAllFinite")()([run.place(x, offset)]))
    for offset, place in itertools.product((0, 1), (None, 0, n - 1)):
        x = np.ones(n, BOOL)
        if place is not None:
            x[place] = False
        result = get_op("All")()(run.place(x, offset))
        assert run.host(result).tolist() == [place is None]


def test_any_byte_but_zero_is_true(run) -> None:
    x = np.arange(256, dtype=np.uint8)
    assert run.host(get_op("All")()(run.place(x[1:].view(BOOL)))).tolist() == [True]
    assert run.host(get_op("All")()(run.place(np.append(x[1:], x).view(BOOL)))).tolist() == [False]


# ---- lists: the table of chunks ------------------------------------------------------------------

# Upstream's tables hold 96 tensors and 320 chunks: when both were full at once, chunks were applied
# twice; when all 96 tensors were empty, the launch failed.
TABLES = {
    "both-full": [4 * 100] * 32 + [3 * 100] * 64,
    "full-before-empties": [4 * 100] * 80 + [0] * 16,
    "all-empty": [0] * 96,
    "twice": [4 * 100] * 64 + [100] * 64 + [7] * 64,
    "last-short": [100] * 95 + [22401],
}


@pytest.mark.parametrize("capacity", [1, 7, 32, 96, 192])
@pytest.mark.parametrize("sizes", TABLES.values(), ids=TABLES)
def test_every_element_is_in_one_chunk_of_one_table(sizes, capacity) -> None:
    seen = [np.zeros(size, int) for size in sizes]
    for table in batches(sizes, 100, capacity):
        assert 0 < len(table.members) <= capacity
        first = table.sizes["first_chunk"]
        assert first[len(table.members) :].tolist() == [table.n_chunks] * (
            capacity + 1 - len(table.members)
        )
        for t, member in enumerate(table.members):
            assert table.sizes["size"][t] == sizes[member]
            for chunk in range(first[t + 1] - first[t]):
                seen[member][chunk * 100 : (chunk + 1) * 100] += 1
    assert all((counts == 1).all() for counts in seen)


@pytest.mark.parametrize("sizes", TABLES.values(), ids=TABLES)
def test_norms_count_every_chunk_once(run, rng, monkeypatch, sizes) -> None:
    """Chunks of 100 float32 and tables of 96: as upstream's, in small."""
    monkeypatch.setattr(reduction, "CHUNK_NBYTES", 400)
    monkeypatch.setattr(reduction, "CAPACITY", 96)
    xs = [rng.choice([-1.0, 1.0], n).astype(FLOAT32) for n in sizes]
    placed = [run.place(x) for x in xs]
    with launch_log() as log:
        result = get_op("ReduceAllL2")()(placed)
    assert_matches(run.host(result), np.array(sum(sizes) ** 0.5, FLOAT32))
    assert len(log) == max(1, -(-np.count_nonzero(sizes) // 96))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "chunks", [[4] * 32 + [3] * 64, [4] * 80 + [0] * 16], ids=["both", "empty"]
)
def test_norms_at_upstreams_own_sizes(chunks) -> None:
    import cupy

    xs = [cupy.ones(65_536 * n, FLOAT32) for n in chunks]
    result = get_op("ReduceAllL2")()(xs)
    assert_matches(result.get(), np.array((65_536 * 320) ** 0.5, FLOAT32))


def test_lists_as_long_as_models_have(run, rng) -> None:
    xs = [numbers(rng, (n,), FLOAT16) for n in rng.integers(0, 19, 894)]
    placed = [run.place(x) for x in xs]
    assert bool(run.host(get_op("IsAllFinite")()(placed)))
    norm = get_op("ReduceAllL2")(output_type="float32")
    assert_matches(run.host(norm(placed)), computed(norm, xs))
    full = next(i for i in rng.permutation(894) if xs[i].size)
    xs[full][-1] = np.inf
    placed[full] = run.place(xs[full])
    assert not run.host(get_op("IsAllFinite")()(placed))
