# SPDX-License-Identifier: MIT
"""The guarded encoder's kernel: launches, any shape, hostile numbers, sequences, refusals."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from cupy_training_ops import ArgumentError, get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name
from cupy_training_ops.families.gist_guard import sample
from cupy_training_ops.plan import Device
from cupy_training_ops.testing.compare import poison

H200 = Device(132, (9, 0))
NAME = "GistGuardedMsfp15Encoder"
floats = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)


@np.errstate(all="ignore")
def cast(x, dtype) -> np.ndarray:
    return np.asarray(x).astype(dtype)


def check(run, op, x: np.ndarray, offset: int = 0, rtol: float = 1e-5) -> np.ndarray:
    """A call on poisoned memory against the CPU provider's bytes and numbers; the guard."""
    codes, guard = op.cpu_function()(x, **op.attribute_values)
    out = [poison(run.blank(Spec(a.shape, a.dtype), offset)) for a in (codes, guard)]
    op.workspaces.poison()
    op(run.place(x, offset), out=tuple(out))
    np.testing.assert_array_equal(run.host(out[0]), codes)
    np.testing.assert_allclose(run.host(out[1]), guard, rtol=rtol)
    return guard


# ---- launches ------------------------------------------------------------------------------------

GROUPS = [
    (1, 64, 64),
    (4, 16, 64),
    (64, 64, 1),
    (1, 64, 65),
    (4, 16, 49),
    (1, 64, 3),
    (64, 63, 1),
    (64, 21, 3),
]
# Runs of whole tiles and of others, features, channels, of more elements than are all measured.
SAMPLED = [
    None,
    (1, 300, 128),
    (1, 250, 204),
    (1, 2, 7003),
    (300, 128, 1),
    (301, 127, 1),
    (20, 64, 49),
    (150, 60, 3),
]


@pytest.mark.parametrize(
    "grouping", [None, (1, 2**27, 64), (2**20, 8192, 1), (64, 64, 2**21), (1, 1, 2**33)]
)
def test_one_launch_has_blocks_for_large_tensors(grouping) -> None:
    op, x = get_op(NAME)(grouping=grouping), Spec((math.prod(grouping or (2**33,)),), FLOAT32)
    plan = op.plan(H200, x, *op.infer(x))
    (step,) = plan.steps
    assert math.prod(step.config.grid) >= H200.multiprocessors
    assert plan.workspace_nbytes < 2**18


def test_nothing_is_measured_for_nobody() -> None:
    op, x = get_op(NAME)(), Spec((2**20,), FLOAT32)
    y, guard = op.infer(x)
    groups = [op.plan(H200, x, y, asked).steps[0].args[5] for asked in (guard, None)]
    assert groups == [1024, 0]


# ---- any shape -----------------------------------------------------------------------------------


def any_grouping(draw: random.Random) -> tuple[int, int, int]:
    """Of up to about 6,000 elements: runs, columns and channels, often of whole tiles."""
    size = lambda most: draw.choice((1, draw.randint(1, most), 8 * draw.randint(1, -(-most // 8))))  # noqa: E731
    inner = size(draw.choice((1, 60, 700)))
    groups = size(max(6000 // inner // draw.choice((1, 30)), 1))
    return size(max(6000 // (inner * groups), 1)), groups, inner


@floats
def test_any_grouping(run, rng, seed, dtype) -> None:
    draw = random.Random(f"{seed} {dtype}")
    for _ in range(12):
        grouping = any_grouping(draw)
        mean, spread = draw.choice(((0, 1), (5, 1), (1e3, 1), (0, 2.0**-7)))
        x = cast(mean + spread * rng.standard_normal(math.prod(grouping)), dtype)
        x[rng.random(x.size) < draw.choice((0, 0.5))] = 0
        op = get_op(NAME)(grouping=draw.choice((grouping, grouping, None)))
        check(run, op, x, draw.choice((0, 0, 1)))


@pytest.mark.parametrize("grouping", SAMPLED, ids=str)
def test_a_sample(run, rng, monkeypatch, grouping) -> None:
    """Bytes are of all elements; the guard is of those that the CPU provider measures."""
    monkeypatch.setattr(sample, "FEW", 4096)
    n = math.prod(grouping or (20_003,))
    x = cast(np.linspace(-9, 9, n) + rng.standard_normal(n), FLOAT32)
    partly = check(run, get_op(NAME)(grouping=grouping), x)
    wholly = check(run, get_op(NAME)(grouping=grouping, whole=True), x, 1)
    assert 0.02 * wholly[1] < partly[1] < 0.8 * wholly[1]
    n_tiles = n * partly[1] / wholly[1] / 8  # in the sample; their squared errors differ by 0.7
    off = partly[0] / partly[1] / (wholly[0] / wholly[1]) - 1
    assert abs(off) < 6 * 0.7 / math.sqrt(n_tiles)


@floats
def test_what_is_not_finite_is_seen_beside_a_sample(run, rng, monkeypatch, dtype) -> None:
    monkeypatch.setattr(sample, "FEW", 1024)
    x = cast(rng.standard_normal(2**15), dtype)
    for at in rng.integers(x.size, size=3):
        bad = x.copy()
        bad[at] = math.nan
        assert check(run, get_op(NAME)(), bad)[0] == math.inf


@pytest.mark.parametrize("outputs", [("Y",), ("guard",)])
@pytest.mark.parametrize("grouping", GROUPS, ids=str)
def test_one_output_alone(run, rng, grouping, outputs) -> None:
    x = rng.standard_normal(math.prod(grouping)).astype(FLOAT32)
    op = get_op(NAME)(grouping=grouping)
    codes, guard = op.cpu_function()(x, **op.attribute_values)
    result = op(run.place(x), outputs=outputs)
    if outputs == ("Y",):
        np.testing.assert_array_equal(run.host(result[0]), codes)
        assert result[1] is None
    else:
        np.testing.assert_allclose(run.host(result[1]), guard, rtol=1e-5)
        assert result[0] is None


# ---- hostile numbers -----------------------------------------------------------------------------

GROUPINGS = [None, (1, 16, 64), (16, 64, 1), (4, 16, 16), (4, 32, 8), (1, 64, 16), (16, 32, 2)]


@floats
@pytest.mark.parametrize("grouping", GROUPINGS, ids=str)
def test_numbers_of_any_magnitude(run, rng, dtype, grouping) -> None:
    """Tensors of one magnitude each: their squares leave float32's range on both sides."""
    op = get_op(NAME)(grouping=grouping)
    exponents = (-10, 0, 15) if dtype == FLOAT16 else (-160, -149, -140, -126, -100, -60, 60, 126)
    for exponent in exponents:
        x = cast(rng.uniform(-1, 1, 1024) * 2.0**exponent, dtype)
        check(run, op, x)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16, FLOAT64], ids=dtype_name)
@pytest.mark.parametrize("grouping", GROUPINGS, ids=str)
def test_magnitudes_that_differ_by_rows(run, rng, dtype, grouping) -> None:
    x = rng.uniform(-1, 1, (16, 64)) * np.exp2(rng.uniform(-140, 120, (16, 1)))
    x[:, ::5] = 0
    check(run, get_op(NAME)(grouping=grouping), cast(x, dtype))


@pytest.mark.parametrize("grouping", GROUPINGS, ids=str)
@pytest.mark.parametrize("mean", [1e4, 1e7])
@pytest.mark.parametrize("first", [None, 0.0, 1e7])
def test_large_means_do_not_cancel(run, rng, grouping, mean, first) -> None:
    """Of both types in every session: only float32 has so few digits that a mean may lose them."""
    x = mean + 3 * rng.standard_normal((16, 64))
    if first is not None:
        x[0] = first
    for dtype in (FLOAT32, FLOAT64):
        check(run, get_op(NAME)(grouping=grouping), cast(x, dtype))


@pytest.mark.parametrize("inner", [3, 13, 49, 100])
def test_neighbours_of_a_large_mean_change_nothing(run, rng, inner) -> None:
    """Groups that share a tile with others are summed about numbers of their own."""
    x = 3 + rng.standard_normal((40, inner))
    x[::2] += 1e7
    for dtype in (FLOAT32, FLOAT64):
        check(run, get_op(NAME)(grouping=(1, 40, inner)), cast(x, dtype))
        check(run, get_op(NAME)(grouping=(2, 20, inner)), cast(x, dtype), 1)


@floats
@pytest.mark.parametrize("grouping", GROUPINGS, ids=str)
@pytest.mark.parametrize("keep", [False, True])
def test_one_number_that_is_not_finite(run, rng, dtype, grouping, keep) -> None:
    op = get_op(NAME)(grouping=grouping, keep_nonfinite=keep)
    for bad in (math.nan, math.inf, -math.inf):
        x = cast(rng.standard_normal(1024), dtype)
        x[rng.integers(1024)] = bad
        assert check(run, op, x).tolist() == [math.inf, 0, 0, math.inf]


@floats
@pytest.mark.parametrize("grouping", GROUPINGS, ids=str)
def test_constant_groups(run, dtype, grouping) -> None:
    """Whose mean is exactly what they are: no rounding makes a deviation."""
    op = get_op(NAME)(grouping=grouping)
    for value in (0.0, -0.0, 1.0, 1.01, 1e-3, -7.77):
        guard = check(run, op, np.full(1024, value, dtype))
        assert guard[1] == guard[2] == 0
        if grouping is not None:
            assert guard[3] == (0 if guard[0] == 0 else math.inf)


@floats
def test_random_bits(run, rng, dtype) -> None:
    """The bytes alone: such tensors are not finite."""
    width = f"u{dtype.itemsize}"
    x = rng.integers(0, np.iinfo(width).max, 4096, width, endpoint=True).view(dtype)
    for keep in (False, True):
        assert check(run, get_op(NAME)(keep_nonfinite=keep), x)[0] == math.inf
    x[~(np.abs(cast(x, FLOAT64)) < 2.0**128)] = 0
    check(run, get_op(NAME)(), x)


# ---- one after another ---------------------------------------------------------------------------


def test_calls_of_other_sizes_change_nothing(run, rng, seed) -> None:
    """Through one instance for each grouping's kind, whose scratch memory is poisoned between."""
    draw = random.Random(seed)
    for size in (3000, 17, 1, 5000, 8, 800, 3001):
        for dtype in draw.sample((FLOAT32, FLOAT16), 2):
            check(run, get_op(NAME).shared(), cast(rng.standard_normal(size), dtype))
    for make in (
        lambda n: (1, n, 64),
        lambda n: (n, 64, 1),
        lambda n: (n, 4, 16),
        lambda n: (n, 5, 3),
    ):
        for n in (40, 3, 90, 1, 17):
            op, x = get_op(NAME).shared(grouping=make(n)), rng.standard_normal(math.prod(make(n)))
            check(run, op, cast(x, FLOAT32))


def test_the_same_call_gives_the_same_bits(run, rng) -> None:
    x = rng.standard_normal(64 * 520).astype(FLOAT32)
    for grouping in (None, (1, 64, 520), (64, 520, 1), (8, 8, 520)):
        op = get_op(NAME)(grouping=grouping)
        first, second = (run.host(op(run.place(x))[1]).copy() for _ in range(2))
        np.testing.assert_array_equal(first, second)


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "grouping", [(1, 2), (1, 2, 3, 4), (1, -2, 3), 5, "abc", (1, 2.5, 3), True]
)
def test_what_is_no_grouping_is_refused(grouping) -> None:
    with pytest.raises(ArgumentError, match="grouping"):
        get_op(NAME)(grouping=grouping)


def test_no_grouping_has_two_spellings() -> None:
    assert get_op(NAME)(grouping=()).grouping is None
    assert get_op(NAME)(grouping=[1, 2, 3]).grouping == (1, 2, 3)


def test_a_grouping_of_other_elements_is_refused(run) -> None:
    x = run.place(np.zeros((4, 6), FLOAT32))
    with pytest.raises(ArgumentError, match=r"grouping: expected .* 24 elements of X.*\(1, 4, 5\)"):
        get_op(NAME)(grouping=(1, 4, 5))(x)


def test_an_empty_tensor_gets_a_guard(run) -> None:
    for grouping in (None, (0, 3, 2)):
        with launch_log() as log:
            y, guard = get_op(NAME)(grouping=grouping)(run.place(np.zeros((0, 6), FLOAT32)))
        assert len(log) == 1
        assert run.host(y).shape == (0, 6)
        assert run.host(guard).tolist() == [0] * 4
