# SPDX-License-Identifier: MIT
"""The oracle of slicing, padding and unpadding against worked cases, a slow model and JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupy_training_ops.families.padding import reference as padding
from cupy_training_ops.testing.compare import assert_matches

INT64_MAX = 2**63 - 1
bounds = st.integers(-9, 9) | st.sampled_from([INT64_MAX, -INT64_MAX - 1])


def test_slice_grad_of_worked_examples() -> None:
    dy = np.array([5, 7], np.float64)
    dx = padding.slice_grad(dy, (2, 4), (1, 0), (2, 3), (0, 1), (1, 2))
    assert dx.tolist() == [[0, 0, 0, 0], [5, 0, 7, 0]]
    square = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2)
    dx = padding.slice_grad(square, (2, 2, 2, 2), (1, 1), (0, 2), (0, 1), (-1, 1))
    assert dx[1, 1].tolist() == [[1, 2], [3, 4]]
    assert np.count_nonzero(dx) == 4


def positions(extent: int, start: int, end: int, step: int) -> list[int]:
    """Positions that ONNX Slice 13 takes of an axis, by walking."""
    start += extent if start < 0 else 0
    end += extent if end < 0 else 0
    at = min(max(start, 0), extent if step > 0 else extent - 1)
    stop = min(max(end, 0 if step > 0 else -1), extent if step > 0 else extent - 1)
    indices = []
    while extent and (at < stop if step > 0 else at > stop):
        indices.append(at)
        at += step
    return indices


@given(
    extents=st.tuples(st.integers(0, 7), st.integers(1, 5)),
    starts=st.tuples(bounds, bounds),
    ends=st.tuples(bounds, bounds),
    steps=st.tuples(st.sampled_from([1, 2, 5, -1, -3]), st.sampled_from([1, -2, INT64_MAX])),
    axes=st.sampled_from([(0, 1), (1, 0), (-1, 0)]),
)
def test_slice_grad_puts_dy_where_a_walk_puts_it(extents, starts, ends, steps, axes) -> None:
    indices: list[list[int]] = [[], []]
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        indices[axis] = positions(extents[axis], start, end, step)
    shape = tuple(map(len, indices))
    dy = 1.0 + np.arange(np.prod(shape)).reshape(shape)
    dx = padding.slice_grad(dy, extents, starts, ends, axes, steps)
    expected = np.zeros(extents)
    for j, row in enumerate(indices[0]):
        for k, column in enumerate(indices[1]):
            expected[row, column] = dy[j, k]
    assert_matches(dx, expected, 0)


@pytest.mark.parametrize(
    ("shape", "arguments"),
    [
        ((6, 7), ((1, 2), (5, 7))),
        ((6, 7), ((-5,), (INT64_MAX,), (1,), (2,))),
        ((4, 5, 6), ((3, -1), (-99, 0), (0, 2), (-1, -2))),
        ((3, 4, 5, 6), ((1, 2), (3, 6), (1, 3))),
    ],
)
def test_slice_grad_is_the_gradient_of_a_slice(rng, shape, arguments) -> None:
    starts, ends, *rest = arguments
    axes = rest[0] if rest else range(len(starts))
    steps = rest[1] if len(rest) > 1 else (1,) * len(starts)
    indices = [slice(None)] * len(shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        indices[axis] = slice(start, end, step)
    x = rng.standard_normal(shape).astype(np.float32)
    y, pull_back = jax.vjp(lambda x: x[tuple(indices)], jnp.asarray(x))
    dy = rng.standard_normal(y.shape).astype(np.float32)
    (expected,) = pull_back(jnp.asarray(dy))
    assert_matches(padding.slice_grad(dy, shape, *arguments), np.asarray(expected), 0)


def test_pad_and_unflatten_of_worked_examples() -> None:
    x, indices = np.arange(1, 7, dtype=np.float32), np.array([1, 3, 5, 7, 9, 11])
    rows = [[0, 1, 0], [2, 0, 3], [0, 4, 0], [5, 0, 6], [0, 0, 0]]
    assert padding.pad_and_unflatten(x, indices, (5, 3)).tolist() == rows
    x = np.arange(1, 10, dtype=np.float16).reshape(3, 3)
    y = padding.pad_and_unflatten(x, np.array([1, 3, 4]), (2, 3))
    zero = [0, 0, 0]
    assert y.tolist() == [[zero, [1, 2, 3], zero], [[4, 5, 6], [7, 8, 9], zero]]


def test_flatten_and_unpad_of_worked_examples() -> None:
    x = np.arange(15, dtype=np.int32).reshape(5, 3)
    assert padding.flatten_and_unpad(x, np.array([1, 3, 5, 7, 9, 11])).tolist() == [
        1, 3, 5, 7, 9, 11,
    ]  # fmt: skip
    x = np.arange(18, dtype=np.int64).reshape(2, 3, 3)
    y = padding.flatten_and_unpad(x, np.array([1, 3, 4]))
    assert y.tolist() == [[3, 4, 5], [9, 10, 11], [12, 13, 14]]


def test_rows_outside_are_skipped_or_zero_and_the_last_duplicate_counts() -> None:
    x = np.array([[1], [2], [3], [4], [5]], np.float32)
    y = padding.pad_and_unflatten(x, np.array([2, -1, 2, 4, 0]), (2, 2))
    assert y.ravel().tolist() == [5, 0, 3, 0]
    y = padding.flatten_and_unpad(x.reshape(5, 1), np.array([4, -1, 0, 5, 0]))
    assert y.tolist() == [5, 0, 1, 0, 1]


@pytest.mark.parametrize("rest", [(), (3,), (2, 4)])
def test_padding_and_unpadding_are_each_others_gradients(rng, rest) -> None:
    dims = (4, 5)
    indices = rng.permutation(20)[:13]
    x = rng.standard_normal((*dims, *rest)).astype(np.float32)
    y, pull_back = jax.vjp(lambda x: x.reshape(20, *rest)[indices], jnp.asarray(x))
    assert_matches(padding.flatten_and_unpad(x, indices), np.asarray(y), 0)
    dy = rng.standard_normal(y.shape).astype(np.float32)
    (dx,) = pull_back(jnp.asarray(dy))
    assert_matches(padding.pad_and_unflatten(dy, indices, dims), np.asarray(dx), 0)

    def pad(rows):
        return jnp.zeros((20, *rest), rows.dtype).at[indices].set(rows).reshape(*dims, *rest)

    _, pull_back = jax.vjp(pad, jnp.asarray(dy))
    (back,) = pull_back(jnp.asarray(x))
    assert_matches(padding.flatten_and_unpad(x, indices), np.asarray(back), 0)
