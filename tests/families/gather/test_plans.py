# SPDX-License-Identifier: MIT
"""Which kernels run for a gather gradient, from shapes, dtypes, alignment and device alone."""

from __future__ import annotations

import numpy as np
import pytest
from references import computed

from cupy_training_ops import get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, INT64
from cupy_training_ops.families.gather import facts
from cupy_training_ops.families.gather import operators as ops
from cupy_training_ops.families.gather import plan as segmented_sum
from cupy_training_ops.families.gather.plan import Digit, Sizes
from cupy_training_ops.plan import Device, ScratchMemory
from cupy_training_ops.testing.compare import assert_matches, poison

H200 = Device(132, (9, 0))


@pytest.mark.parametrize(
    ("rows", "slices", "expected"),
    [
        (1, 9, [(0, 1)]),
        (511, 9, [(0, 9)]),
        (512, 9, [(0, 5), (5, 5)]),
        (50257, 32768, [(0, 8), (8, 8)]),
        (128256, 2**20 - 1, [(0, 9), (9, 8)]),
        (128256, 2**20, [(0, 9), (9, 8)]),
        (2**26, 9, [(0, 9), (9, 9), (18, 9)]),
        (2**26, 2**20 - 1, [(0, 9), (9, 9), (18, 9)]),
        (2**26, 2**20, [(0, 7), (7, 7), (14, 7), (21, 6)]),
        (2**40, 9, [(0, 9), (9, 9), (18, 9), (27, 9), (36, 5)]),
    ],
)
def test_digits(rows, slices, expected) -> None:
    """They hold the key `rows` of an index out of range; long sorts have shorter ones."""
    actual = segmented_sum.digits(rows, slices, 9)
    assert actual == tuple(Digit(*digit) for digit in expected)
    assert sum(digit.bits for digit in actual) == rows.bit_length()


@pytest.mark.parametrize(
    ("slices", "expected"),
    [(1, ()), (64, ()), (65, (2,)), (32768, (1024, 32)), (2**26, (2**21, 2**16, 2048, 64))],
)
def test_levels(slices, expected) -> None:
    assert segmented_sum.levels(slices, 32) == expected


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
    config, items = segmented_sum.items_grid(batches, n, runs, packets)
    assert (config.grid, config.block) == (grid, block)
    assert items["fold"] == 1 or items["fold"] * items["n"] < 2**32
    assert config.grid[2] * items["fold"] >= batches
    assert config.grid[0] // items["column_blocks"] * block[1] >= items["fold"] * n
    assert items["column_blocks"] * block[0] * packets >= runs


@pytest.mark.parametrize(("slices", "expected"), [(1, 4), (799, 4), (800, 1), (2**40, 1)])
def test_short_rows_share_a_thread(slices, expected) -> None:
    """Fewer than 32 slices in four rows on the average."""
    assert segmented_sum.rows_of_a_thread(Sizes(1, slices, 100, 8), 32) == expected


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
    assert segmented_sum.are_few(sizes) is expected


PLANS = [
    # shape, K, deterministic, offset of dY, symbols after the sort
    ((50257, 1024), 32768, True, 0, ["sum_nodes", "sum_rows"]),
    ((50257, 1024), 60, True, 0, ["starts", "sum_rows"]),
    ((50257, 1024), 60, True, 1, ["starts", "sum_rows__scalar"]),
    ((50257, 1023), 70, True, 0, ["sum_nodes__scalar", "sum_rows__scalar"]),
]


@pytest.mark.parametrize(("shape", "slices", "deterministic", "offset", "after"), PLANS)
def test_stages_of_the_sorted_way(shape, slices, deterministic, offset, after) -> None:
    symbols = planned(shape, slices, FLOAT16, deterministic, offset == 0)
    sort = ["gather_grad__keys", "gather__scatter", "gather__count", "gather__scatter"]
    assert symbols == sort + [f"gather__{stage}" for stage in after]


KIB = 1024


@pytest.mark.parametrize(
    ("slices", "rows", "shared", "expected"),
    [
        (4096, 50257, 227 * KIB, "sort"),
        (4097, 50257, 227 * KIB, "keys"),
        (4096, 50257, 99 * KIB, "keys"),
        (3072, 50257, 99 * KIB, "sort"),
        (1024, 50257, 64 * KIB, "sort"),
        (1025, 50257, 64 * KIB, "keys"),
        (600, 50257, 48 * KIB, "keys"),
        (4096, 2**32, 227 * KIB, "keys"),
    ],
)
def test_few_slices_are_sorted_by_one_block(slices, rows, shared, expected) -> None:
    device = Device(132, (9, 0), shared)
    symbols = planned((rows, 8), slices, FLOAT32, True, True, device)
    assert symbols[0] == f"gather_grad__{expected}"


@pytest.mark.parametrize(
    ("slices", "variant", "starts"),
    [
        (2**16 - 1, "", "sum_nodes__scalar"),
        (2**16, "", "starts__many"),
        (2**20 - 1, "", "starts__many"),
        (2**20, "__long", "starts__many"),
        (2**22, "__long", "starts__many"),
        (2**22 + 1, "__long", "sum_nodes__scalar"),
    ],
)
def test_stages_of_many_elements(slices, variant, starts) -> None:
    symbols = planned((2**20,), slices, FLOAT32, True, True)
    assert f"gather__scatter{variant}" in symbols
    results = [symbol for symbol in symbols if symbol.startswith(("gather__starts", "gather__sum"))]
    assert results[0] == f"gather__{starts}"


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


def planned(shape, slices, dtype, deterministic, aligned, device=H200) -> list[str]:
    op = get_op("GatherGrad")(deterministic=deterministic)
    dy, dx = Spec((slices, *shape[1:]), dtype, aligned), Spec(shape, dtype, aligned)
    plan = op.plan(device, shape, Spec((slices,), INT64), dy, dx)
    return [launch.symbol for launch in plan.steps]


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
    assert [launch.symbol for launch in plan.steps] == ["gather__zero", symbol]
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
    assert ops.coalesce(indices, shape, axis) == expected


def test_workspace_is_a_small_part_of_the_data() -> None:
    op = get_op("GatherGrad")()
    dy, dx = Spec((32768, 1024), FLOAT32), Spec((50257, 1024), FLOAT32)
    nbytes = op.plan(H200, dx.shape, Spec((32768,), INT64), dy, dx).workspace_nbytes
    assert nbytes < 16 * 32768 + 4 * 50257 + dy.nbytes / 15 + 2**17


def test_keys_of_64_bits(run, rng, monkeypatch) -> None:
    """Keys of 64 bits, for rows or slices past 2^32, here for fewer."""
    monkeypatch.setattr(segmented_sum, "MAX_32_BIT", 20)
    assert Sizes(1, 21, 4, 1).key == np.uint64
    indices, dy = rng.integers(-30, 30, 300), rng.standard_normal((2, 300, 3)).astype(FLOAT32)
    out = poison(run.blank(Spec((2, 30, 3), FLOAT32)))
    op = get_op("GatherGrad")(axis=1)
    actual = op((2, 30, 3), run.place(indices), run.place(dy), out=out)
    assert_matches(run.host(actual), computed(op, (2, 30, 3), indices, dy))


@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32])
def test_long_rows_stand_beside_short_and_empty_ones(run, rng, dtype) -> None:
    """Wide rows of 16 entries or more are items of their own; every row is written once."""
    op, extent, width = get_op("GatherGrad")(axis=1), 90, 256
    for indices in (
        rng.integers(0, extent, 40),
        np.full(300, extent - 1),
        rng.permutation(np.arange(extent)),
        np.full(70, extent),
        rng.integers(0, extent // 2, 700),
        rng.permutation(np.repeat([3, 4, 5, 7, 50], [1, 33, 32, 64, 2])),
    ):
        dy = rng.standard_normal((2, indices.size, width)).astype(dtype)
        out = poison(run.blank(Spec((2, extent, width), dtype)))
        actual = op((2, extent, width), run.place(indices), run.place(dy), out=out)
        expected = computed(op, (2, extent, width), indices, dy)
        assert_matches(run.host(actual), expected, 1e-2 if dtype == FLOAT16 else 1e-4)


@pytest.mark.parametrize("kind", ["same", "two", "skewed", "out of range"])
@pytest.mark.parametrize(("dtype", "width"), [(FLOAT32, 33), (FLOAT32, 40), (FLOAT16, 264)])
def test_nodes_above_are_summed_by_the_last_block_below(run, rng, monkeypatch, kind, dtype, width):
    """The same bits as by a launch of their own, call after call."""
    n, extent = 32 * 66 + 5, 50
    indices = {
        "same": np.full(n, 7),
        "two": np.repeat([3, 9], [1050, n - 1050]),
        "skewed": np.minimum(rng.zipf(1.5, n), extent) - 1,
        "out of range": np.full(n, extent),
    }[kind]
    dy = rng.standard_normal((n, width)).astype(dtype)
    args = (extent, width), run.place(indices), run.place(dy)

    def results(launches: int) -> list[bytes]:
        op, actual = get_op("GatherGrad")(), []
        for _ in range(2):
            out = poison(run.blank(Spec((extent, width), dtype)))
            with launch_log() as log:
                op(*args, out=out)
            assert str(log).count("sum_nodes") == launches
            actual.append(run.host(out).tobytes())
        return actual

    assert segmented_sum.levels(n, facts.FANOUT) == (66, 2)
    once = results(1)
    monkeypatch.setattr(segmented_sum, "sums_parents", lambda *_: False)
    assert once == results(2)


@pytest.mark.parametrize(("width", "expected"), [(1, 0), (124, 0), (128, 5), (1024, 5)])
def test_long_rows_are_items_of_their_own_where_rows_are_wide(width, expected) -> None:
    dy, dx = Spec((70, width), FLOAT32), Spec((50, width), FLOAT32)
    plan = get_op("GatherGrad")().plan(H200, dx.shape, Spec((70,), INT64), dy, dx)
    sums = [step for step in plan.steps if "sum_rows" in step.symbol]
    assert [step.args[-1] for step in sums] == [expected] * len(sums)


@pytest.fixture
def few_are_many(monkeypatch) -> None:
    """The ways of long sorts and of many rows, of any number of either."""
    for name, value in {"LONG_SORT": 1, "MANY_ROWS": 1, "DENSE": 100, "SPARSE": 100}.items():
        monkeypatch.setattr(segmented_sum, name, value)


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize("wide", [False, True], ids=["32-bit", "64-bit"])
@pytest.mark.parametrize("kind", ["uniform", "skewed", "same", "out of range"])
@pytest.mark.parametrize(("extent", "n"), [(700, 70_000), (8192, 9000), (20_000, 300)])
def test_what_long_sorts_take(run, rng, monkeypatch, wide, kind, extent, n) -> None:
    """More digits, large tiles, starts found by looking at entries; here of few slices."""
    if wide:
        monkeypatch.setattr(segmented_sum, "MAX_32_BIT", 20)
    indices = {
        "uniform": rng.integers(-extent, extent, n),
        "skewed": np.minimum(rng.zipf(1.2, n), extent) - 1,
        "same": np.full(n, extent - 1),
        "out of range": rng.integers(-3 * extent, 3 * extent, n),
    }[kind]
    dy = rng.standard_normal(n).astype(FLOAT32)
    op = get_op("GatherGrad")()
    actual = op((extent,), run.place(indices), run.place(dy))
    assert_matches(run.host(actual), computed(op, (extent,), indices, dy), 1e-4)


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize(
    ("wide", "n"),
    [(False, 9 * 3072 + 1), (True, 9 * 1536 + 1), (False, 1024), (True, 4096)],
    ids=["one in a last tile", "one in a last tile, 64-bit", "4^5", "4^6, 64-bit"],
)
def test_sizes_at_a_bound(run, rng, monkeypatch, wide, n) -> None:
    """A block's second tile of one entry; a search among 4^k entries; digits past bit 32."""
    if wide:
        result = segmented_sum.digits
        monkeypatch.setattr(segmented_sum, "MAX_32_BIT", 20)
        monkeypatch.setattr(segmented_sum, "digits", lambda _, *rest: result(2**40, *rest))
    indices, dy = rng.integers(0, 600, n), 1 + rng.random(n).astype(FLOAT32)
    indices[-1] = 599
    expected = computed(get_op("GatherGrad")(), (600,), indices, dy)
    for rows in (2**40, 1):  # by a look at all entries, by searches
        monkeypatch.setattr(segmented_sum, "DENSE", rows)
        op = get_op("GatherGrad")()  # plans anew
        actual = op((600,), run.place(indices), run.place(dy))
        assert_matches(run.host(actual), expected, 1e-5)


def test_elements_of_batches(run, rng) -> None:
    """Batches share their entries, which so cannot carry elements, though W is 1."""
    indices, dy = rng.integers(-50, 50, 300), rng.standard_normal((3, 300)).astype(FLOAT32)
    op = get_op("GatherGrad")(axis=1)
    actual = op((3, 50), run.place(indices), run.place(dy))
    assert_matches(run.host(actual), computed(op, (3, 50), indices, dy), 1e-5)


@pytest.mark.usefixtures("few_are_many")
def test_pieces_of_the_workspace_are_kept_apart(run, rng, monkeypatch) -> None:
    """No kernel writes past the piece it was given: gaps between them stay as they were."""
    gaps, take = [], ScratchMemory.take

    def apart(self, n, dtype):
        piece = take(self, n, dtype)
        end = piece.offset + n * np.dtype(dtype).itemsize
        self._nbytes += 256
        gaps.append(slice(end, self._nbytes))
        return piece

    monkeypatch.setattr(ScratchMemory, "take", apart)
    indices, dy = rng.integers(-800, 800, 5000), rng.standard_normal(5000).astype(FLOAT32)
    inputs = (700,), run.place(indices), run.place(dy)
    op = get_op("GatherGrad")()
    workspace = run.place(np.full(op.workspace_nbytes(*inputs), 0x5A, np.uint8))
    op(*inputs, workspace=workspace)
    assert all((run.host(workspace)[gap] == 0x5A).all() for gap in gaps)


def test_a_radix_is_a_power_of_two() -> None:
    """A thread for each digit, and every digit of so many bits."""
    assert facts.RADIX == facts.SORT_THREADS == 1 << facts.RADIX.bit_length() - 1
