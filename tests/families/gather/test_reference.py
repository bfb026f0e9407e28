# SPDX-License-Identifier: MIT
"""The gather oracle against conservation laws, JAX's derivatives and worked examples."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivatives import vjp
from hypothesis import given, settings
from hypothesis import strategies as st
from references import References

from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name
from cupy_training_ops.testing.compare import assert_matches

gather = References("gather")
gather_grad, gather_nd_grad = gather.gather_grad, gather.gather_nd_grad
gather_elements_grad = gather.gather_elements_grad

jax.config.update("jax_enable_x64", True)

floats = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)
seeds = st.integers(0, 2**32 - 1)


def array(values, dtype=FLOAT32) -> np.ndarray:
    return np.array(values, FLOAT64).astype(dtype)


def indices_below(rng, extent, shape) -> np.ndarray:
    """Indices in range, of either sign."""
    return rng.integers(-np.asarray(extent), extent, shape)


def derivative(forward, shape, dy: np.ndarray) -> np.ndarray:
    """JAX's gradient of `forward`, which is linear, for an input of this shape."""
    (gradient,) = vjp(forward, (np.zeros(shape),), dy)
    return gradient


# ---- derivatives: JAX differentiates the forward operator ----------------------------------------


@settings(deadline=None, max_examples=25)  # JAX compiles each
@given(shapes, shapes, st.data(), seeds)
def test_gather_grad_is_the_derivative(shape, index_shape, data, seed) -> None:
    rng = np.random.default_rng(seed)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    indices = indices_below(rng, shape[axis], index_shape)
    before, after = shape[: axis % len(shape)], shape[axis % len(shape) + 1 :]
    dy = rng.standard_normal(before + index_shape + after)
    expected = derivative(lambda x: jnp.take(x, indices % shape[axis], axis=axis), shape, dy)
    assert_matches(gather_grad(shape, indices, dy, axis=axis), expected)


@settings(deadline=None, max_examples=25)  # JAX compiles each
@given(shapes, shapes, st.data(), seeds)
def test_gather_nd_grad_is_the_derivative(shape, middle, data, seed) -> None:
    rng = np.random.default_rng(seed)
    b = data.draw(st.integers(0, len(shape) - 1))
    k = data.draw(st.integers(1, len(shape) - b))
    indices = indices_below(rng, shape[b : b + k], (*shape[:b], *middle, k))
    dy = rng.standard_normal(indices.shape[:-1] + shape[b + k :])

    def forward(x):
        gather = lambda x, i: x[tuple(jnp.moveaxis(i, -1, 0))]  # noqa: E731
        for _ in range(b):
            gather = jax.vmap(gather)
        return gather(x, jnp.asarray(indices % shape[b : b + k]))

    assert_matches(gather_nd_grad(shape, indices, dy, batch_dims=b), derivative(forward, shape, dy))


@settings(deadline=None, max_examples=25)  # JAX compiles each
@given(shapes, st.integers(1, 9), st.data(), seeds)
def test_gather_elements_grad_is_the_derivative(shape, length, data, seed) -> None:
    rng = np.random.default_rng(seed)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    index_shape = list(shape)
    index_shape[axis] = length
    indices = indices_below(rng, shape[axis], index_shape)
    dy = rng.standard_normal(index_shape)
    forward = lambda x: jnp.take_along_axis(x, indices % shape[axis], axis=axis)  # noqa: E731
    assert_matches(
        gather_elements_grad(dy, shape, indices, axis=axis), derivative(forward, shape, dy)
    )


# ---- conservation: what is in dY is in dX, once --------------------------------------------------


@given(shapes, shapes, seeds)
def test_sums_are_conserved(shape, index_shape, seed) -> None:
    rng = np.random.default_rng(seed)
    indices = indices_below(rng, shape[0], index_shape)
    dy = rng.standard_normal(index_shape + shape[1:])
    dx = gather_grad(shape, indices, dy)
    axes = tuple(range(len(index_shape)))
    np.testing.assert_allclose(dx.sum(axis=0), dy.sum(axis=axes), atol=1e-12)


@given(seeds)
def test_elements_off_the_axis_may_be_fewer(seed) -> None:
    """The sum along the axis stays in its column; columns that no index is in stay zero."""
    rng = np.random.default_rng(seed)
    dy, indices = rng.standard_normal((7, 3)), indices_below(rng, 4, (7, 3))
    dx = gather_elements_grad(dy, (4, 5), indices)
    np.testing.assert_allclose(dx.sum(axis=0), [*dy.sum(axis=0), 0, 0], atol=1e-12)


@floats
def test_out_of_range_adds_nothing(dtype, rng) -> None:
    dy = rng.standard_normal((5, 4)).astype(dtype)
    indices = np.array([0, 3, -4, 2, -3])
    expected = array([dy[0].astype(FLOAT64) + dy[4].astype(FLOAT64), [0] * 4, dy[3]], dtype)
    assert_matches(gather_grad((3, 4), indices, dy), expected)
    tuples = np.stack([indices, np.zeros_like(indices)], axis=-1)
    assert_matches(gather_nd_grad((3, 1, 4), tuples, dy), expected[:, None])
    every_column = np.broadcast_to(indices[:, None], dy.shape)
    assert_matches(gather_elements_grad(dy, (3, 4), every_column), expected)


# ---- worked examples -----------------------------------------------------------------------------

halves = pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=dtype_name)


@halves
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_gather_grad_constants(dtype, index) -> None:
    dy = array(2 * [[[0, 1, 2], [3, 4, 5]]], dtype)
    twice = gather_grad((3, 3), np.array([[0, 1], [0, 1]], index), dy)
    assert_matches(twice, array([[0, 2, 4], [6, 8, 10], [0, 0, 0]], dtype), 0)
    negative = gather_grad((3, 3), np.array([[0, -1], [0, -2]], index), dy)
    assert_matches(negative, array([[0, 2, 4], [3, 4, 5], [3, 4, 5]], dtype), 0)


def test_gather_grad_joins_an_index_and_its_negative() -> None:
    """Upstream loses one of the two: they are segments of their own there."""
    dx = gather_grad((3,), np.array([2, -1]), array([10, 1]))
    assert_matches(dx, array([0, 0, 11]), 0)


@floats
def test_gather_nd_grad_constants(dtype) -> None:
    update = array([[1, 2, 3], [4, 5, 6]], dtype)
    expected = array([[[0, 0, 0], [1, 2, 3]], [[4, 5, 6], [0, 0, 0]]], dtype)
    for indices in ([[0, 1], [1, 0]], [[-2, -1], [-1, -2]]):
        assert_matches(gather_nd_grad((2, 2, 3), np.array(indices), update), expected, 0)
    batched = gather_nd_grad((2, 2, 3), np.array([[[1]], [[0]]]), update[:, None], batch_dims=1)
    assert_matches(batched, expected, 0)


@pytest.mark.parametrize("indices", [[[[1], [1]], [[0], [1]]], [[[-1], [-1]], [[-2], [1]]]])
def test_gather_nd_grad_two_batch_dimensions(indices) -> None:
    update = array(np.arange(12).reshape(2, 2, 3))
    dx = gather_nd_grad((2, 2, 2, 3), np.array(indices), update, batch_dims=2)
    rows = [
        [0, 0, 0],
        [0, 1, 2],
        [0, 0, 0],
        [3, 4, 5],
        [6, 7, 8],
        [0, 0, 0],
        [0, 0, 0],
        [9, 10, 11],
    ]
    assert_matches(dx, array(rows).reshape(2, 2, 2, 3), 0)


@halves
def test_gather_elements_grad_sums_duplicates(dtype) -> None:
    dx = gather_elements_grad(array([[11, 22], [33, 44]], dtype), (3, 3), np.ones((2, 2), np.int32))
    assert_matches(dx, array([[0, 0, 0], [44, 66, 0], [0, 0, 0]], dtype), 0)


def test_gather_elements_grad_constants() -> None:
    longer = gather_elements_grad(
        array([[1.1, 2.2, 3.3, 4.4]]), (1, 2), np.array([[0, 1, 0, 1]]), axis=1
    )
    assert_matches(longer, array([[4.4, 6.6]]))
    for index in (3, -1):
        deep = gather_elements_grad(array([[[7]]]), (4, 2, 1), np.full((1, 1, 1), index))
        assert deep.ravel().tolist() == [0, 0, 0, 0, 0, 0, 7, 0]


def test_bfloat16_sums_are_rounded_once() -> None:
    """1 + 2^-8 lies between two neighbours; 2^-40 more belongs to the upper one."""
    dy = np.array([1, 2.0**-8, 2.0**-40], BFLOAT16)
    assert gather_grad((1,), np.zeros(3, np.int64), dy) == 1 + 2.0**-7
