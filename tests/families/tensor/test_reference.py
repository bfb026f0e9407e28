# SPDX-License-Identifier: MIT
"""The oracle of views, joining and splitting against worked cases, NumPy's parts and JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from references import References

from cupy_training_ops.dtypes import FIXED_SIZE, dtype_name
from cupy_training_ops.families.tensor.samples import values
from cupy_training_ops.testing.compare import assert_matches

tensor = References("tensor")

every_dtype = pytest.mark.parametrize("dtype", FIXED_SIZE, ids=dtype_name)
lengths = st.lists(st.integers(0, 5), min_size=1, max_size=6)


def counted(*shape: int) -> np.ndarray:
    return np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)


@pytest.mark.parametrize(
    ("shape", "pieces"),
    [
        ((4, 2), [(2, 2), (2, 2)]),
        ((4, 2), [(1, 2), (3, 2)]),
        ((4, 2), [(1, 2), (1, 3, 2)]),
        ((4, 3), [(1, 2), (1, 3, 2), (4, 1)]),
        ((3, 2), [(2, 1), (1, 2, 2)]),
        ((3,), [(), (0, 7), (2,)]),
    ],
)
def test_views_of_worked_examples(shape, pieces) -> None:
    x = counted(*shape)
    views = tensor.view(x, pieces)
    assert [view.shape for view in views] == pieces
    assert np.concatenate([view.ravel() for view in views]).tolist() == x.ravel().tolist()
    assert all(np.shares_memory(view, x) for view in views if view.size)


def test_concat_of_worked_examples() -> None:
    parts = [np.int32([1]), np.int32([2, 3]), np.int32([4, 5, 6, 7])]
    assert tensor.concat_training(parts, axis=-1).tolist() == [1, 2, 3, 4, 5, 6, 7]
    columns = [counted(4, 1), counted(4, 2), counted(4, 1)]
    rows = [[1, 1, 2, 1], [2, 3, 4, 2], [3, 5, 6, 3], [4, 7, 8, 4]]
    assert tensor.concat_training(columns, axis=1).tolist() == rows
    cubes = tensor.concat_training([counted(2, 2, 2), -counted(2, 2, 2)], axis=1)
    assert cubes[1].tolist() == [[5, 6], [7, 8], [-5, -6], [-7, -8]]


def test_split_of_worked_examples() -> None:
    x = counted(4, 2)
    even = tensor.split_training(x, num_outputs=2)
    assert [part.tolist() for part in even] == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
    first, rest = tensor.split_training(x, (1, 3))
    assert (first.tolist(), rest.tolist()) == ([[1, 2]], [[3, 4], [5, 6], [7, 8]])
    nothing, every = tensor.split_training(x, (0, 2), axis=-1)
    assert nothing.shape == (4, 0)
    assert every.tolist() == x.tolist()


@every_dtype
@given(sizes=lengths, before=st.integers(1, 3), after=st.integers(1, 3), seed=st.integers(0, 2**32))
def test_split_undoes_concat(dtype, sizes, before, after, seed) -> None:
    rng = np.random.default_rng(seed)
    parts = [values(rng, (before, size, after), dtype) for size in sizes]
    joined = tensor.concat_training(parts, axis=1)
    assert joined.dtype == dtype
    for part, back in zip(parts, tensor.split_training(joined, sizes, axis=1), strict=True):
        assert_matches(back, part)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_split_is_the_gradient_of_concat(rng, axis) -> None:
    shapes = [(2, 3, 4), (2, 3, 4), (2, 3, 4)]
    parts = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    joined, pull_back = jax.vjp(lambda *xs: jnp.concatenate(xs, axis), *parts)
    assert_matches(tensor.concat_training(parts, axis=axis), np.asarray(joined), 0)
    dy = rng.standard_normal(joined.shape).astype(np.float32)
    sizes = [shape[axis] for shape in shapes]
    gradients = tensor.split_training(dy, sizes, axis=axis)
    for actual, expected in zip(gradients, pull_back(jnp.asarray(dy)), strict=True):
        assert_matches(actual, np.asarray(expected), 0)
