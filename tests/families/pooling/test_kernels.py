# SPDX-License-Identifier: MIT
"""Pools on every provider: what is special about them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from references import References

from cupy_training_ops import average_pool_grad, global_average_pool, max_pool, max_pool_grad
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS
from cupy_training_ops.families.pooling import plan_tiles
from cupy_training_ops.families.pooling.operators import (
    AveragePool,
    AveragePoolGrad,
    MaxPool,
    MaxPoolGrad,
)
from cupy_training_ops.plan import Device
from cupy_training_ops.testing.compare import assert_matches

pooling = References("pooling")

drawn = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
numbers = st.tuples(st.integers(1, 4), st.integers(1, 4))
PAIRS = {"kernel_shape": numbers, "strides": numbers, "dilations": numbers}
pools = st.fixed_dictionaries(
    {**PAIRS, "pads": st.tuples(*[st.integers(0, 5)] * 4), "ceil_mode": st.booleans()}
)


def drawn_images(rng: np.random.Generator, pool: dict, dtype: object) -> np.ndarray:
    """Larger than a window's reach, of few values."""
    reach = [(k - 1) * d + 1 for k, d in zip(pool["kernel_shape"], pool["dilations"], strict=True)]
    extents = rng.integers(reach, [n + 9 for n in reach])
    return rng.integers(-4, 5, (2, 2, *extents)).astype(dtype)


@pytest.fixture
def general(monkeypatch):
    """Kernels are compiled for no windows: those for all of them run."""
    monkeypatch.setattr(plan_tiles, "MAX_TAPS", 0)


@pytest.mark.usefixtures("general")
@drawn
@given(pool=pools, order=st.sampled_from([0, 1]), dtype=st.sampled_from(FLOATS))
def test_any_max_pool(run, rng, pool, order, dtype) -> None:
    x, pool = drawn_images(rng, pool, dtype), pool | {"storage_order": order}
    y, indices = max_pool(run.place(x), **pool)
    expected, places = pooling.max_pool(x, **pool)
    assert_matches(run.host(y), expected, 0)
    assert_matches(run.host(indices), places, 0)
    dx = max_pool_grad(y, indices, x.shape, **pool)
    assert_matches(run.host(dx), pooling.max_pool_grad(expected, places, x.shape, **pool))
    others = places + rng.integers(-3, 4, places.shape)  # many of them of no element of the window
    far = rng.choice([0, 2**32, 2**63 - 1, -(2**63)], places.shape, p=[0.91, 0.03, 0.03, 0.03])
    others = np.where(far, far, others)
    dx = max_pool_grad(y, run.place(others), x.shape, **pool)
    assert_matches(run.host(dx), pooling.max_pool_grad(expected, others, x.shape, **pool))


@pytest.mark.usefixtures("general")
@drawn
@given(pool=pools, include=st.booleans(), dtype=st.sampled_from(FLOATS))
def test_any_average_pool_grad(run, rng, pool, include, dtype) -> None:
    shape, pool = drawn_images(rng, pool, dtype).shape, pool | {"count_include_pad": include}
    y_shape = pooling.average_pool(np.zeros(shape), **pool).shape
    dy = rng.standard_normal(y_shape).astype(dtype)
    dx = average_pool_grad(run.place(dy), shape, **pool)
    assert_matches(run.host(dx), pooling.average_pool_grad(dy, shape, **pool))


def test_special_values_of_max_pool(anywhere) -> None:
    tiny = np.float32(1e-45)
    x = np.array([[[-0.0, 0, np.nan, 1, np.inf, -np.inf, tiny, 2 * tiny, -tiny]]], np.float32)
    y, indices = max_pool(anywhere.place(x), kernel_shape=(2,))
    assert anywhere.host(indices).tolist() == [[[0, 2, 2, 4, 4, 6, 7, 7]]]
    assert_matches(anywhere.host(y), x[..., [0, 2, 2, 4, 4, 6, 7, 7]], 0)
    y, _ = max_pool(anywhere.place(x), kernel_shape=(2,), outputs=("Y",))
    assert_matches(anywhere.host(y)[..., 0], x[..., 0], 0)


def test_a_window_of_minus_infinity_has_an_index(anywhere) -> None:
    x = np.full((1, 1, 3), -np.inf, np.float32)
    y, indices = max_pool(anywhere.place(x), kernel_shape=(2,), pads=(2, 0))
    assert anywhere.host(indices).tolist() == [[[-1, 0, 0, 1]]]
    assert np.isneginf(anywhere.host(y)).all()


@pytest.mark.parametrize("wanted", ["Y", "Indices"])
def test_one_output_of_max_pool(anywhere, rng, wanted) -> None:
    x = rng.standard_normal((2, 3, 5, 4)).astype(np.float32)
    both = dict(zip(("Y", "Indices"), pooling.max_pool(x, kernel_shape=(2, 2)), strict=True))
    result = max_pool(anywhere.place(x), kernel_shape=(2, 2), outputs=(wanted,))
    (array,) = [item for item in result if item is not None]
    assert_matches(anywhere.host(array), both[wanted], 0)


@pytest.mark.parametrize(("length", "symbol"), [(2047, "warp"), (2048, "block")])
def test_which_kernel_sums_a_plane(run, rng, length, symbol) -> None:
    x = rng.standard_normal((1, 3, length)).astype(np.float32)
    with launch_log() as log:
        y = global_average_pool(run.place(x))
    assert [launch.symbol for launch in log] == [f"global_average_pool__{symbol}"]
    assert_matches(run.host(y), pooling.global_average_pool(x))


# ---- kernels that are compiled for their windows ------------------------------------------------

DEVICE = Device(132, (9, 0))

# extents, kernel, strides, pads, dtype, offset of the arrays, whether one more window may begin
TILED = [
    ((16, 24), (3, 3), (2, 2), (1, 1, 1, 1), FLOAT16, 0, False),
    ((9, 16), (2, 2), (2, 2), (0,) * 4, FLOAT32, 0, False),
    ((10, 32), (3, 3), (1, 1), (1, 1, 1, 1), BFLOAT16, 0, False),
    ((10, 32), (3, 3), (1, 1), (1, 1, 1, 1), FLOAT16, 1, False),
    ((13, 13), (3, 3), (2, 2), (0,) * 4, FLOAT16, 0, True),
    ((12, 24), (3, 3), (2, 2), (0,) * 4, FLOAT32, 0, True),
    ((14, 14), (2, 2), (2, 2), (0,) * 4, FLOAT16, 0, False),
    ((11, 8), (5, 5), (1, 1), (2, 2, 2, 2), FLOAT32, 0, False),
    ((8, 24), (3, 2), (3, 3), (1, 0, 2, 1), FLOAT16, 0, True),
    ((9, 10), (2, 3), (3, 4), (0,) * 4, FLOAT64, 0, False),
    ((7, 12), (4, 5), (1, 2), (3, 4, 0, 1), FLOAT64, 0, True),
    ((40,), (3,), (2,), (1, 1), FLOAT16, 0, False),
    ((3, 5, 16), (1, 3, 3), (1, 2, 2), (0, 1, 1, 0, 1, 1), BFLOAT16, 0, False),
]
THOROUGH = [pytest.param(case, marks=pytest.mark.thorough) for case in TILED[1:]]


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.dtype.itemsize}")


def in_both_ways(run, monkeypatch, make, inputs, offset):
    """Kernels for any windows and those for these give the same bits."""
    results = []
    for most, suffix in ((0, ""), (plan_tiles.MAX_TAPS, "__tiles")):
        op = make()
        monkeypatch.setattr(plan_tiles, "MAX_TAPS", most)
        with launch_log() as log:
            result = op(*run.place_inputs(op, inputs, offset))
        assert [launch.symbol for launch in log] == [op.function_name + suffix]
        results.append([run.host(a) for a in (result if isinstance(result, tuple) else (result,))])
    for general, tiled in zip(*results, strict=True):
        np.testing.assert_array_equal(bits(general), bits(tiled))
    return results[1]


def special(rng: np.random.Generator, shape: tuple[int, ...], dtype: object) -> np.ndarray:
    """Few values, among them those of which zeros, infinities and NaN are."""
    values = [-2, -1, -0.0, 0, 1, 2, np.inf, -np.inf, -np.inf, np.nan]
    return rng.choice(values, shape, p=[0.12] * 6 + [0.06, 0.1, 0.1, 0.02]).astype(dtype)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("case", [TILED[0], *THOROUGH])
def test_tiles_give_the_same_bits(run, rng, monkeypatch, case, include) -> None:
    extents, kernel, strides, pads, dtype, offset, ceil = case
    pool = {"kernel_shape": kernel, "strides": strides, "pads": pads, "ceil_mode": ceil}
    counted, shape = pool | {"count_include_pad": include}, (2, 3, *extents)

    def both(op, *inputs):
        keywords = counted if op.function_name.startswith("average") else pool
        return in_both_ways(run, monkeypatch, lambda: op(**keywords), inputs, offset)

    x = special(rng, shape, dtype)
    y, indices = both(MaxPool, x)
    assert_matches(y, pooling.max_pool(x, **pool)[0], 0)
    assert_matches(indices, pooling.max_pool(x, **pool)[1], 0)
    others = indices + rng.choice([0, 0, 1, -1, 2**32], indices.shape)
    others[..., -1:] = rng.choice([2**63 - 1, -(2**63)], others[..., -1:].shape)
    both(MaxPoolGrad, rng.standard_normal(y.shape).astype(dtype), others, shape)
    both(AveragePool, x)
    x = rng.standard_normal(shape).astype(dtype)
    (means,) = both(AveragePool, x)
    assert_matches(means, pooling.average_pool(x, **counted))
    (dx,) = both(AveragePoolGrad, means, shape)
    assert_matches(dx, pooling.average_pool_grad(means, shape, **counted))


def test_a_nan_of_two_bytes_is_taken_as_it_is(run) -> None:
    x = np.full((1, 1, 8, 8), -1, FLOAT16)
    bits(x)[0, 0, :2, :4] = [[0xFE01, 0x7C05, 0, 0x7E02], [0x7FFF, 0, 0x7E03, 0]]
    y, indices = max_pool(run.place(x), kernel_shape=(2, 2), strides=(2, 2))
    assert bits(run.host(y))[0, 0, 0, :2].tolist() == [0xFE01, 0x7E02]
    assert run.host(indices)[0, 0, 0, :2].tolist() == [0, 3]


def tiled(extents, kernel, dtype=FLOAT16, **keywords):
    """Slots of the kernel of a MaxPool, or None where it is the one for any windows."""
    x = Spec((1, 64, *extents), dtype, keywords.pop("aligned", True))
    op = MaxPool(kernel_shape=kernel, **keywords)
    (launch,) = op.plan(DEVICE, x, *op.infer(x)).steps
    return launch.slots if launch.symbol == "max_pool__tiles" else None


OVERLAPPING = {"strides": (2, 2), "pads": (1, 1, 1, 1)}


@pytest.mark.parametrize(
    ("extents", "kernel", "keywords"),
    [
        ((112, 112), (3, 3), {"dilations": (2, 1)}),
        ((112, 112), (3, 3), {"pads": (3, 0, 0, 0)}),  # of the first windows no element is in X
        ((112, 112), (3, 3), {"storage_order": 1}),
        ((112, 112), (7, 5), {}),
        ((112, 112), (1, 1), {"strides": (1, 40)}),
        ((8, 112, 112), (2, 3, 3), {}),
        ((2**15, 2**15), (3, 3), {"strides": (3, 3)}),  # planes of 2 GiB
        ((2**31 - 1,), (1,), {}),
    ],
)
def test_windows_for_which_no_kernel_is_compiled(extents, kernel, keywords) -> None:
    assert tiled(extents, kernel, **keywords) is None


@pytest.mark.parametrize(
    ("extents", "keywords", "columns", "x_vectors", "y_vectors"),
    [
        ((112, 112), OVERLAPPING, 2, 1, 1),
        ((112, 112), OVERLAPPING | {"dtype": FLOAT64}, 1, 1, 1),
        ((112, 112), OVERLAPPING | {"aligned": False}, 1, 0, 1),
        ((112, 112), {"strides": (2, 2)}, 2, 1, 0),  # of 55 windows the last tile has one
        ((111, 111), OVERLAPPING, 1, 0, 1),
        ((111, 111), {"pads": (1, 1, 1, 1)}, 2, 0, 0),
        (
            (4, 112, 112),
            {"strides": (1, 2, 2), "pads": (0, 1, 1) * 2, "kernel": (1, 3, 3)},
            2,
            1,
            1,
        ),
    ],
)
def test_tiles_of_whole_vectors(extents, keywords, columns, x_vectors, y_vectors) -> None:
    keywords = dict(keywords)
    slots = tiled(extents, keywords.pop("kernel", (3, 3)), **keywords)
    results = [slots[name] for name in ("TILE_COLUMNS", "X_VECTORS", "Y_VECTORS")]
    assert results == [str(columns), str(x_vectors), str(y_vectors)]
