# SPDX-License-Identifier: MIT
"""Batch normalisation's kernels: which runs for what, order, memory in place, large offsets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupy_training_ops import get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOAT64
from cupy_training_ops.families.batch_norm import plan as planning
from cupy_training_ops.families.batch_norm import plan_shared_memory
from cupy_training_ops.families.batch_norm.facts import RING_ROWS
from cupy_training_ops.families.batch_norm.plan import Work, schedules
from cupy_training_ops.families.batch_norm.plan_shared_memory import Tiles
from cupy_training_ops.families.batch_norm.samples import NAMES, ROWS, inputs
from cupy_training_ops.plan import Device, ceil_div
from cupy_training_ops.testing.compare import TOLERANCE, assert_matches

H200 = Device(132, (9, 0), 227 * 1024)
RESNET = (64, 256, 56, 56)

names = pytest.mark.parametrize("name", NAMES)


def operator(name: str, **attributes):
    required = {} if name == "BatchNormInternal" else {"epsilon": 1e-5}
    return get_op(name)(**required, **attributes)


def plan_of(name: str, shape, t=FLOAT32, aligned: bool = True, **attributes):
    """The plan on an H200."""
    op, row = operator(name, **attributes), next(row for row in ROWS if row[0] == t)
    channels = (1 if len(shape) == 1 else shape[1],)
    arrays = {
        "T": Spec(shape, t, aligned),
        "T1": Spec(channels, row[1]),
        "T2": Spec(channels, row[2]),
    }
    arguments = [arrays[item.type if item.name not in ("dY",) else "T"] for item in op.inputs]
    results = [result and Spec(result.shape, result.dtype) for result in op.infer(*arguments)]
    return op.plan(H200, *arguments, *results)


def number(step, field: str) -> int:
    """A number of the structs that a launch gets."""
    structs = [a for a in step.args if isinstance(a, np.void)]
    return int(next(a[field] for a in structs if field in a.dtype.names))


def planned(*args, **keywords):
    """The launches on an H200: kernel, blocks and threads of each."""
    steps = plan_of(*args, **keywords).steps
    ways = [s.symbol.partition("__")[2].removeprefix("gradient_of_") for s in steps]
    return [(w, s.config.grid[0], s.config.block[0]) for w, s in zip(ways, steps, strict=True)]


@pytest.mark.parametrize(
    ("name", "shape", "t", "expected"),
    [
        ("BatchNormInternal", RESNET, FLOAT32, ("channel_parts", 396, 256)),
        ("BatchNormalizationGrad", RESNET, FLOAT16, ("channel_parts", 396, 256)),
        ("BatchNormInternal", (8, 2048, 8, 8), FLOAT32, ("channels", 2048, 64)),
        ("BatchNormalizationGrad", (64, 512, 7, 8), FLOAT16, ("channels", 512, 224)),
        ("BatchNormInternal", (64, 512, 7, 7), FLOAT16, ("narrow_staged_channels", 128, 256)),
        ("BatchNormInternal", (256, 512, 16, 8), FLOAT16, ("staged_channels", 264, 256)),
        ("BatchNormInternal", (256, 1024, 14, 14), FLOAT16, ("staged_channels", 132, 512)),
        (
            "BatchNormalizationGrad",
            (256, 1024, 14, 14),
            FLOAT16,
            ("narrow_staged_channels", 132, 512),
        ),
        ("BatchNormInternal", (4096, 1024, 14, 14), FLOAT16, ("column_rings", 264, 256)),
        ("BatchNormInternal", (64, 3, 7, 7), FLOAT16, ("single_channel_parts", 3, 256)),
        ("BatchNormInternal", (64, 512, 63, 63), FLOAT16, ("single_channel_parts", 396, 256)),
        ("BatchNormInternal", (64, 511, 3, 3), FLOAT32, ("column_parts", 64, 256)),
        ("BatchNormInternal", (65_536, 1024), FLOAT32, ("column_parts", 264, 256)),
        ("BatchNormInternal", (100, 1000), FLOAT16, ("column_rings", 8, 256)),
        ("BatchNormalizationGrad", (65_536, 1024), FLOAT16, ("column_rings", 264, 256)),
        ("BatchNormInternal", (2**20, 1), FLOAT32, ("channel_parts", 128, 256)),
        ("BatchNormInternal", (1000,), FLOAT64, ("channels", 1, 256)),
        ("BatchNormInternal", (0, 70), FLOAT32, ("channels", 70, 32)),
    ],
)
def test_the_plan_suits_the_shape(name, shape, t, expected) -> None:
    assert planned(name, shape, t) == [expected]


def test_input_statistics_and_misaligned_arrays() -> None:
    shape = (8, 16, 8, 8)
    assert planned("BatchNormInternal", shape)[0][0] == "channels"
    assert planned("BatchNormInternal", shape, training_mode=0)[0][0] == "channel_parts"
    assert planned("BatchNormInternal", shape, aligned=False)[0][0] == "single_channel_parts"


@pytest.mark.parametrize(
    ("name", "sums"), [("BatchNormInternal", 3), ("BatchNormalizationGrad", 2)]
)
@pytest.mark.parametrize(("t", "of_channel"), [(FLOAT32, 16), (FLOAT64, 32)])
@pytest.mark.parametrize("shape", [RESNET, (8000, 512)], ids=["pieces", "columns"])
def test_scratch_memory_is_what_the_help_says(shape, t, of_channel, name, sums) -> None:
    plan = plan_of(name, shape, t)
    n_parts = number(plan.steps[0], "n_parts")
    assert n_parts > 1
    partial_sums = n_parts * sums * t.itemsize
    assert plan.workspace_nbytes <= 17_000 + shape[1] * (of_channel + partial_sums)


def test_many_tiles_take_several_launches() -> None:
    """Counters of so many tiles lie at the start of the scratch memory, for any call."""
    launches = planned("BatchNormInternal", (64, 5000, 64, 64))
    assert [symbol for symbol, _, _ in launches] == ["channel_parts"] * 3


@given(st.integers(1, 3000), st.integers(1, 50), st.integers(1, 400))
def test_tickets_give_each_item_once_and_never_wait_for_a_later_one(
    n_tiles, n_parts, blocks
) -> None:
    """As batch_norm/schedule.cuh reads the struct."""
    for _, schedule in schedules(blocks, Work(n_tiles, n_parts)):
        n, lag = int(schedule["n_items"]), int(schedule["lag"])
        turn = np.arange(2 * (n - lag))
        summed = np.concatenate([np.arange(lag), lag + turn[::2] // 2])
        sum_tickets = np.concatenate([np.arange(lag), lag + turn[::2]])
        applied = np.concatenate([turn[1::2] // 2, np.arange(n - lag, n)])
        apply_tickets = np.concatenate([lag + turn[1::2], np.arange(2 * n - lag, 2 * n)])
        assert summed.tolist() == applied.tolist() == list(range(n))
        last_part = applied // n_parts * n_parts + n_parts - 1
        assert (sum_tickets[last_part] < apply_tickets).all()


@names
@pytest.mark.parametrize("shape", [(40, 19), (3, 5, 20), (3, 2, 6000), (2, 3, 4001), (300, 66)])
def test_any_input_may_be_the_output(anywhere, rng, name, shape) -> None:
    op = operator(name)
    arguments = inputs(rng, name, shape)
    expected = op.cpu_function()(*arguments, **op.attribute_values)[0]
    for i in range(1 if name == "BatchNormInternal" else 2):
        arrays = [anywhere.place(array) for array in arguments]
        out = (arrays[i], *[None] * (len(op.outputs) - 1))
        assert op(*arrays, out=out)[0] is arrays[i]
        assert_matches(anywhere.host(arrays[i]), expected)


@names
@pytest.mark.parametrize("shape", [(40, 19), (3, 5, 20), (3, 2, 6000), (1100, 34)])
def test_outputs_that_are_not_asked_for_are_not_written(anywhere, rng, name, shape) -> None:
    op = operator(name)
    arguments = inputs(rng, name, shape)
    expected = op.cpu_function()(*arguments, **op.attribute_values)
    for i, output in enumerate(op.outputs):
        arrays = [anywhere.place(array) for array in arguments]
        results = op(*arrays, outputs=(output.name,))
        assert [result is None for result in results] == [i != k for k in range(len(results))]
        assert_matches(anywhere.host(results[i]), expected[i])
        for declared, array, before in zip(op.inputs, arrays, arguments, strict=True):
            if declared.name != output.aliases:
                assert anywhere.host(array).tobytes() == before.tobytes()


@pytest.mark.parametrize("shape", [(5, 3, 400), (2, 2, 9000), (300, 5), (9000, 4), (150, 2, 6, 5)])
def test_large_offsets(anywhere, rng, shape) -> None:
    """Mean 1e4, deviation 1e-2: sums of squares alone would keep no digit of the variance."""
    x = (1e4 + 1e-2 * rng.standard_normal(shape)).astype(FLOAT32)
    exact = np.moveaxis(x, 1, 0).reshape(shape[1], -1).astype(FLOAT64)
    ones, zeros = np.ones(shape[1], FLOAT32), np.zeros(shape[1], FLOAT32)
    arrays = [anywhere.place(a) for a in (x, ones, zeros, zeros, ones)]
    results = get_op("BatchNormInternal")(epsilon=1e-12)(*arrays)
    y, _, _, mean, inv_std = [anywhere.host(result) for result in results]
    assert np.abs(mean - exact.mean(1)).max() < 1e-3
    assert np.abs(inv_std * exact.std(1) - 1).max() < 1e-3
    assert np.isfinite(y).all()
    assert abs(float(y.std()) - 1) < 1e-3
    slopes = [anywhere.place(a) for a in (x, x, ones, mean, inv_std)]
    for gradient in operator("BatchNormalizationGrad")(*slopes):
        assert np.isfinite(anywhere.host(gradient)).all()


@pytest.mark.parametrize("shape", [(1, 2, 9000), (9000, 2), (300, 2, 6, 5)])
def test_a_first_element_far_from_all_others(anywhere, rng, shape) -> None:
    """The reference of elements costs no digits of the deviation."""
    x = rng.standard_normal(shape).astype(FLOAT32)
    x[0].reshape(2, -1)[:, 0] = 1e5
    flat = np.moveaxis(x, 1, 0).reshape(2, -1).astype(FLOAT64)
    ones = np.ones(2, FLOAT32)
    arrays = [anywhere.place(a) for a in (x, ones, ones, ones, 2 * ones)]
    *_, mean, inv_std = [anywhere.host(r) for r in get_op("BatchNormInternal")()(*arrays)]
    assert (np.abs(mean - flat.mean(1)) < 4e-5 * flat.std(1)).all()
    # Of 300 draws half were off by less than 1e-6, the worst by 8e-6; one of others was by 1.1e-5.
    assert np.abs(inv_std * flat.std(1) - 1).max() < TOLERANCE["float32"]


def test_sums_are_exact_where_they_can_be(anywhere) -> None:
    """65,536 halves of 1: as halves they would stop at 2,048."""
    x = np.ones((2, 1, 32_768), FLOAT16)
    one = np.ones(1, FLOAT32)
    arrays = [anywhere.place(a) for a in (x, 2 * x, one, one, one)]
    dx, scale_grad, bias_grad = operator("BatchNormalizationGrad")(*arrays)
    assert anywhere.host(scale_grad).tolist() == anywhere.host(bias_grad).tolist() == [65_536]
    assert (anywhere.host(dx) == -1).all()


def matches(result, expected, n) -> bool:
    """Sums of n numbers of about 1 may cancel: what is left is off as they are."""
    assert_matches(result, expected, slack=2.0**-20 * n**0.5)
    return True


def test_one_workspace_serves_any_shape(run, rng) -> None:
    """Counters are zero again after each call, and nothing else lies where they are."""
    for name in NAMES:
        op, calls = operator(name), []
        for shape in ((2, 2, 9216), (1100, 34), (2, 30, 4099), (2, 2, 9216)):
            calls.append(inputs(rng, name, shape))
        nbytes = max(op.workspace_nbytes(*map(run.place, arguments)) for arguments in calls)
        workspace = run.place(np.full(nbytes, 0xFF, np.uint8))
        for arguments in calls:
            expected = op.cpu_function()(*arguments, **op.attribute_values)
            for names in ([op.outputs[-1].name], [output.name for output in op.outputs]):
                arrays = map(run.place, arguments)
                results = op(*arrays, outputs=tuple(names), workspace=workspace)
                for result, other in zip(results, expected, strict=True):
                    assert result is None or matches(run.host(result), other, arguments[1].size)
                assert not run.host(workspace)[: 4 * (1 + 2 * planning.MAX_TILES)].any()


@names
@pytest.mark.parametrize("shape", [(1, 5, 9216), (300, 300)])
def test_several_launches_are_one_result(run, rng, monkeypatch, name, shape) -> None:
    monkeypatch.setattr(planning, "MAX_TILES", 2)
    op, arguments = operator(name), inputs(rng, name, shape)
    expected = op.cpu_function()(*arguments, **op.attribute_values)
    with launch_log() as log:
        results = op(*map(run.place, arguments))
    assert len(log) > 1
    for result, other in zip(results, expected, strict=True):
        assert_matches(run.host(result), other)


def two_calls(run, rng, name, shape, t):
    """The launches of each in one workspace, which is full of ones before; and its first words."""
    op = operator(name)
    arguments = inputs(rng, name, shape, next(row for row in ROWS if row[0] == t))
    expected = op.cpu_function()(*arguments, **op.attribute_values)
    nbytes = op.workspace_nbytes(*map(run.place, arguments))
    workspace = run.place(np.full(nbytes, 0xFF, np.uint8))
    for _ in range(2):
        with launch_log() as log:
            results = op(*map(run.place, arguments), workspace=workspace)
        for result, other in zip(results, expected, strict=True):
            assert matches(run.host(result), other, arguments[1].size)
        words = run.host(workspace)
        yield log, words[: words.size // 4 * 4].view(np.uint32)


@names
@pytest.mark.parametrize("group_parts", [1, 3, 7, 40])
@pytest.mark.parametrize("t", [FLOAT32, FLOAT16])
def test_parts_that_are_merged_in_groups(run, rng, monkeypatch, name, t, group_parts) -> None:
    """The last group is smaller; counters are zero again."""
    monkeypatch.setattr(planning.Call, "_shared_memory_tiles", lambda *_: None)
    monkeypatch.setattr(planning, "PART_NBYTES", 1024)
    monkeypatch.setattr(planning, "_rounds", lambda *_: 3)
    monkeypatch.setattr(planning, "_group_parts", lambda *_: group_parts)
    for (step,), counters in two_calls(run, rng, name, (700, 136), t):
        assert step.symbol.endswith("column_rings" if t == FLOAT16 else "column_parts")
        n_items, n_parts = number(step, "n_items"), number(step, "n_parts")
        n_groups = n_items // n_parts * ceil_div(n_parts, group_parts) if group_parts > 1 else 0
        assert n_parts > 7
        assert not counters[: 1 + 2 * planning.MAX_TILES + n_groups].any()


@pytest.mark.parametrize(
    ("kib", "capability", "ring"), [(227, (9, 0), 6), (163, (8, 0), 4), (99, (8, 6), 0)]
)
def test_rows_on_their_way_take_the_shared_memory_that_there_is(kib, capability, ring) -> None:
    op = operator("BatchNormInternal")
    x, *others = Spec((65_536, 1024), FLOAT16), *[Spec((1024,), FLOAT32)] * 4
    device = Device(132, capability, kib * 1024)
    (step,) = op.plan(device, x, *others, *op.infer(x, *others)).steps
    assert step.symbol.endswith("column_rings" if ring else "column_parts")
    assert number(step, "ring_groups") == ring
    assert 2 * (step.config.shared_nbytes + 16 * 1024 + 1024) <= (kib + 1) * 1024


@names
@pytest.mark.parametrize("ring", [4, 6])
def test_what_blocks_keep_of_their_parts(run, rng, monkeypatch, name, ring) -> None:
    """Also where a block has several parts, and keeps the last alone; threads have unlike rows."""
    monkeypatch.setattr(planning.Call, "_shared_memory_tiles", lambda *_: None)
    monkeypatch.setattr(planning.Call, "_ring", lambda *_: ring)
    monkeypatch.setattr(planning, "PART_NBYTES", 2**17)
    for (step,), counters in two_calls(run, rng, name, (2611, 136), FLOAT16):
        assert step.symbol.endswith("column_rings")
        assert number(step, "n_parts") > 1
        assert number(step, "turns") > ring * RING_ROWS
        assert not counters[: 1 + 2 * planning.MAX_TILES].any()


@names
@pytest.mark.parametrize("over", [0, 1, 2])
def test_groups_of_rows_that_others_were_copied_over(run, rng, monkeypatch, name, over) -> None:
    """As many as there are more than the ring has room for; of the last one a row alone."""
    monkeypatch.setattr(planning.Call, "_shared_memory_tiles", lambda *_: None)
    monkeypatch.setattr(planning.Call, "_ring", lambda *_: 4)
    monkeypatch.setattr(planning, "PART_NBYTES", 2**30)
    depth = RING_ROWS // (2 if name.endswith("Grad") else 1)
    turns = (4 + over - 1) * depth + 1
    rows = turns * planning.THREADS // (256 // 16)  # a row of a tile is 256 bytes
    for (step,), _ in two_calls(run, rng, name, (rows, 128), FLOAT16):
        assert step.symbol.endswith("column_rings")
        assert number(step, "turns") == turns


# The ring of the last has room for the rows of more than one tile.
IN_SHARED_MEMORY = [(37, 20, 7, 7), (140, 5, 6, 20), (9, 36, 7, 3), (250, 9, 128)]


@names
@pytest.mark.parametrize("all_rows", [True, False], ids=["all", "half"])
@pytest.mark.parametrize("t", [FLOAT32, FLOAT16])
@pytest.mark.parametrize("shape", IN_SHARED_MEMORY, ids=str)
def test_channels_in_shared_memory(run, rng, monkeypatch, name, shape, t, all_rows) -> None:
    """Several tiles a block, the last of them narrow; where room is short, rows are read again."""
    monkeypatch.setattr(plan_shared_memory, "MOST_BLOCKS", 1)
    if run.on_gpu:
        monkeypatch.setattr(Tiles, "occupies", True)
    if not all_rows:
        monkeypatch.setattr(Tiles, "depth", property(lambda tiles: ceil_div(tiles.rows, 2)))
        monkeypatch.setattr(plan_shared_memory, "SLOT_NBYTES", (8,))
    op = operator(name)
    arguments = inputs(rng, name, shape, next(row for row in ROWS if row[0] == t))
    expected = op.cpu_function()(*arguments, **op.attribute_values)
    with launch_log() as log:
        results = op(*map(run.place, arguments))
    assert ["staged_channels" in step.symbol for step in log] == [True]
    for result, other in zip(results, expected, strict=True):
        assert matches(run.host(result), other, arguments[1].size)


def fixed(run) -> list[bytes]:
    digests = []
    for name in NAMES:
        for shape in ((2, 2, 9216), (1100, 34), (2, 3, 2051)):
            arguments = inputs(np.random.default_rng(3), name, shape)
            results = operator(name)(*map(run.place, arguments))
            digests += [run.host(result).tobytes() for result in results]
    return digests


def test_the_order_of_threads_changes_no_bit(in_every_order) -> None:
    first, *others = in_every_order(fixed)
    assert all(other == first for other in others)


@names
def test_nothing_is_launched_for_nothing(run, name) -> None:
    with launch_log() as log:
        results = operator(name)(*map(run.place, inputs(np.random.default_rng(0), name, (3, 0, 4))))
    assert not log
    assert [math.prod(result.shape) for result in results] == [0] * len(results)


@names
def test_one_compilation_a_type(name) -> None:
    """Whatever the shape, and the types of what there is for each channel."""
    bindings = set()
    for shape in ((9, 9), (9, 64, 5), (2, 3, 100_001), (9000, 7)):
        for row in ROWS:
            op, n = operator(name), (shape[1],)
            specs = [Spec(shape, row[0]), Spec(n, row[1]), Spec(n, row[2])]
            arguments = [specs[("T", "T1", "T2").index(item.type)] for item in op.inputs]
            plan = op.plan(H200, *arguments, *op.infer(*arguments))
            bindings |= {tuple(step.slots.items()) for step in plan.steps}
    assert len(bindings) == len({row[0] for row in ROWS})
