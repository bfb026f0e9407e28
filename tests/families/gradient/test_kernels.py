# SPDX-License-Identifier: MIT
"""Gradient kernels: in place, at every alignment of every array, over lists of any length."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from halves import assert_rounded_once
from references import computed

from cupy_training_ops import get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name
from cupy_training_ops.families.gradient import operators as gradient
from cupy_training_ops.testing.compare import assert_matches, poison

PAIRS = ((FLOAT32, FLOAT32), (FLOAT32, FLOAT16), (BFLOAT16, FLOAT32), (FLOAT16, FLOAT16))

pairs = pytest.mark.parametrize(("t", "v"), PAIRS, ids=lambda dtype: dtype_name(dtype))


def normal(rng: np.random.Generator, shape, dtype) -> np.ndarray:
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def expected_sum(old_sum: np.ndarray, value: np.ndarray) -> np.ndarray:
    return (old_sum.astype(FLOAT32) + value.astype(FLOAT32)).astype(old_sum.dtype)


def ends(t, v) -> list[int]:
    """Sizes around the ends of packets and tiles."""
    itemsize = max(t.itemsize, v.itemsize)
    tile = gradient.THREADS * gradient.NBYTES // itemsize
    return [1, 15, 16, 17, tile - 1, tile, tile + 1, 2 * tile + 5]


# ---- in place ------------------------------------------------------------------------------------


@pairs
def test_accumulation_in_place(run, rng, t, v) -> None:
    for n in ends(t, v):
        old_sum, value = normal(rng, n, t), normal(rng, n, v)
        placed = run.place(old_sum)
        result = get_op("InPlaceAccumulator")()(placed, run.place(value))
        assert result is placed
        assert_matches(run.host(placed), expected_sum(old_sum, value))


def test_half_sums_are_rounded_once(anywhere, rng) -> None:
    """Also where the value has more digits than the sum."""
    old_sum, value = rng.uniform(0.5, 2, 6000).astype(FLOAT16), rng.uniform(0.5, 2, 6000)
    value = value.astype(FLOAT32)
    placed = [anywhere.place(old_sum) for _ in range(3)]
    added = anywhere.place(value)
    get_op("InPlaceAccumulator")()(placed[0], added)
    get_op("InPlaceAccumulatorV2")()(placed[1], added)
    get_op("InPlaceAccumulatorList")()([placed[2]], [added])
    for result in placed:
        assert_rounded_once(anywhere.host(result), old_sum + value.astype(FLOAT64))


def test_a_signal_that_is_false_launches_nothing_in_place(run, rng) -> None:
    old_sum, value = normal(rng, 100, FLOAT32), normal(rng, 100, FLOAT16)
    placed, added, out = run.place(old_sum), run.place(value), run.blank(Spec((100,), FLOAT32))
    op, listed = get_op("InPlaceAccumulator")(), get_op("InPlaceAccumulatorList")()
    with launch_log() as log:
        assert op(placed, added, False) is placed
        assert listed([placed], [added], False)[0] is placed
    assert not log
    assert_matches(run.host(placed), old_sum, 0)
    with launch_log() as log:
        assert op(placed, added, False, out=poison(out)) is out
        assert_matches(run.host(out), old_sum, 0)
        assert listed([placed], [added], False, out=(poison(out),))[0] is out
        assert_matches(run.host(out), old_sum, 0)
    assert len(log) == 2


def test_the_sum_itself_may_be_given_as_out(run, rng) -> None:
    old_sum, value = normal(rng, 1000, FLOAT32), normal(rng, 1000, FLOAT32)
    placed = run.place(old_sum)
    assert get_op("InPlaceAccumulator")()(placed, run.place(value), out=placed) is placed
    assert_matches(run.host(placed), expected_sum(old_sum, value))


@pairs
def test_version_2_in_place(run, rng, t, v) -> None:
    old_sum, value = normal(rng, 3001, t), normal(rng, 3001, v)
    placed, added = run.place(old_sum), run.place(value)
    op = get_op("InPlaceAccumulatorV2")()
    assert op(placed, added)[1] is placed
    assert_matches(run.host(placed), expected_sum(old_sum, value))
    flag, result = op(poison(placed), added, True)
    assert (flag.tolist(), result is placed) == ([True], True)
    assert_matches(run.host(placed), value.astype(t), 0)


@pytest.mark.parametrize("offset", [0, 1, 5])
@pytest.mark.parametrize("t", FLOATS, ids=dtype_name)
def test_zeroing_in_place(run, rng, t, offset) -> None:
    """And nothing beside the gradient."""
    for n in (1, 3, 17, 2048, 4099):
        whole = run.place(normal(rng, n + offset + 3, t))
        before = run.host(whole).copy()
        part = whole[offset : offset + n]
        get_op("ZeroGradient")()(part, run.place(np.ones(1, np.int64)))
        after = run.host(whole)
        assert not after[offset : offset + n].tobytes().strip(b"\0")
        assert_matches(after[:offset], before[:offset], 0)
        assert_matches(after[offset + n :], before[offset + n :], 0)


def test_a_signal_that_is_not_read_may_have_strides(anywhere, rng) -> None:
    gradient_ = anywhere.place(normal(rng, 17, FLOAT32))
    signal = anywhere.place(normal(rng, (4, 6), FLOAT16))
    assert get_op("ZeroGradient")()(gradient_, signal.T[::2]) is gradient_
    assert not anywhere.host(gradient_).any()


# ---- arrays that start anywhere ------------------------------------------------------------------


@pairs
def test_accumulation_at_every_alignment(run, rng, t, v) -> None:
    op = get_op("InPlaceAccumulator")()
    for old, added, new in itertools.product((0, 1, 3), repeat=3):
        n = int(rng.integers(1, 5000))
        old_sum, value = normal(rng, n, t), normal(rng, n, v)
        out = poison(run.blank(Spec((n,), t), new))
        op(run.place(old_sum, old), run.place(value, added), out=out)
        assert_matches(run.host(out), expected_sum(old_sum, value))


@pairs
def test_fused_outputs_start_anywhere(run, rng, t, v) -> None:
    xs = [normal(rng, n, v) for n in rng.integers(0, 3000, 20)]
    s = np.array(rng.uniform(0.5, 2), FLOAT32)
    op = get_op("MixedPrecisionScale")(to=t, fuse_outputs=True)
    (y,) = op(run.place(s), [run.place(x, i % 3) for i, x in enumerate(xs)])
    scaled = [(x.astype(FLOAT32) * s).astype(t) for x in xs]
    assert_matches(run.host(y), np.concatenate(scaled))


# ---- lists ---------------------------------------------------------------------------------------

# Upstream's table of one launch: 320 chunks of at most 32 or 64 tensors (see test_reduction.py).
TABLES = {
    "32-full": [10 * 64] * 32,
    "64-full": [5 * 64] * 64,
    "full-before-empties": [10 * 64] * 24 + [0] * 8,
    "all-but-one-empty": [0] * 32 + [1],
}


@pytest.mark.parametrize("capacity", [32, 64])
@pytest.mark.parametrize("sizes", TABLES.values(), ids=TABLES)
def test_lists_are_accumulated_once(run, rng, monkeypatch, sizes, capacity) -> None:
    """Chunks of 64 float32 and tables of upstream's sizes: applied twice there."""
    monkeypatch.setattr(gradient, "CHUNK_NBYTES", 4 * 64)
    monkeypatch.setattr(gradient, "CAPACITY", capacity)
    old_sums, values = ([normal(rng, n, FLOAT32) for n in sizes] for _ in range(2))
    placed = [run.place(x) for x in old_sums]
    with launch_log() as log:
        get_op("InPlaceAccumulatorList")()(placed, [run.place(x) for x in values])
    assert len(log) == -(-np.count_nonzero(sizes) // capacity)
    for result, old_sum, value in zip(placed, old_sums, values, strict=True):
        assert_matches(run.host(result), old_sum + value)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("n", "size"), [(32, 655_360), (64, 327_680), (32, 589_824), (32, 524_288)]
)
def test_lists_at_upstreams_own_sizes(n, size) -> None:
    import cupy

    old_sums = [cupy.full(size, i, FLOAT32) for i in range(n)]
    get_op("InPlaceAccumulatorList")()(old_sums, [cupy.ones(size, FLOAT16)] * n)
    assert all(bool((x == i + 1).all()) for i, x in enumerate(old_sums))


def test_lists_of_any_alignment(run, rng) -> None:
    sizes = rng.integers(0, 6000, 12)
    old_sums = [normal(rng, n, FLOAT32) for n in sizes]
    values = [normal(rng, n, FLOAT16) for n in sizes]
    placed = [run.place(x, i % 3) for i, x in enumerate(old_sums)]
    added = [run.place(x, i % 4) for i, x in enumerate(values)]
    get_op("InPlaceAccumulatorList")()(placed, added)
    for result, old_sum, value in zip(placed, old_sums, values, strict=True):
        assert_matches(run.host(result), expected_sum(old_sum, value))


@pytest.mark.parametrize("x", FLOATS, ids=dtype_name)
@pytest.mark.parametrize("y", FLOATS, ids=dtype_name)
def test_scales_of_every_type_combination(run, rng, x, y) -> None:
    array, s = normal(rng, 3003, x), np.array([rng.uniform(0.5, 2)], FLOAT32)
    op = get_op("MixedPrecisionScale")(to=y)
    (result,) = op(run.place(s), [run.place(array)])
    (expected,) = computed(op, s, [array])
    assert_matches(run.host(result), expected)


def test_float64_accumulates_in_float64(run, rng) -> None:
    old_sum, value = normal(rng, 501, FLOAT64), normal(rng, 501, FLOAT32)
    placed = run.place(old_sum)
    get_op("InPlaceAccumulator")()(placed, run.place(value))
    assert_matches(run.host(placed), old_sum + value.astype(FLOAT64))


# Their nearest float32 are ties of bfloat16, they are not: both are nearest to 1 + 2^-7.
BESIDE_TIES = (1 + 2**-8 + 2**-40, 1 + 3 * 2**-8 - 2**-40)
FROM_FLOAT64 = {
    "InPlaceAccumulator": lambda op, x, zero, _: op()(zero, x),
    "InPlaceAccumulatorV2": lambda op, x, zero, _: op()(zero, x, True)[1],
    "MixedPrecisionScale": lambda op, x, _, one: op(to=BFLOAT16)(one, [x])[0],
    "ReduceAllL2": lambda op, x, _zero, _one: op(output_type=BFLOAT16)([x[:1]]),
}


@pytest.mark.parametrize("name", FROM_FLOAT64)
def test_float64_is_rounded_to_bfloat16_once(anywhere, name) -> None:
    arrays = np.array(BESIDE_TIES), np.zeros(2, BFLOAT16), np.ones(1, FLOAT32)
    result = FROM_FLOAT64[name](get_op(name), *map(anywhere.place, arrays))
    assert (anywhere.host(result) == 1 + 2**-7).all()
