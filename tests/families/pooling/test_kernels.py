# SPDX-License-Identifier: MIT
"""What is special about pools, on every provider."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from references import References

from cupy_training_ops import average_pool_grad, global_average_pool, max_pool, max_pool_grad
from cupy_training_ops.dtypes import FLOATS
from cupy_training_ops.runtime.launch import launch_log
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
    dx = max_pool_grad(y, run.place(others), x.shape, **pool)
    assert_matches(run.host(dx), pooling.max_pool_grad(expected, others, x.shape, **pool))


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
    found = max_pool(anywhere.place(x), kernel_shape=(2, 2), outputs=(wanted,))
    (array,) = [item for item in found if item is not None]
    assert_matches(anywhere.host(array), both[wanted], 0)


@pytest.mark.parametrize(("length", "symbol"), [(2047, "warp"), (2048, "block")])
def test_which_kernel_sums_a_plane(run, rng, length, symbol) -> None:
    x = rng.standard_normal((1, 3, length)).astype(np.float32)
    with launch_log() as log:
        y = global_average_pool(run.place(x))
    assert [launch.symbol for launch in log] == [f"global_average_pool__{symbol}"]
    assert_matches(run.host(y), pooling.global_average_pool(x))
