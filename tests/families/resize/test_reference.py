# SPDX-License-Identifier: MIT
"""The oracle of ResizeGrad against worked examples, JAX, and laws of conservation."""

from __future__ import annotations

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivatives import vjp
from hypothesis import given
from hypothesis import strategies as st

from cupy_training_ops import resize_grad
from cupy_training_ops.testing.compare import assert_matches

MODES = ("half_pixel", "align_corners")
modes = pytest.mark.parametrize("mode", MODES)
extents = st.integers(1, 9)


def gradient(dy, shape, mode="half_pixel", scales=None) -> np.ndarray:
    x = np.empty(shape, dy.dtype)
    return resize_grad(dy, x, None, scales, coordinate_transformation_mode=mode)


def of_ones(outputs: int, mode: str, scale: float | None) -> np.ndarray:
    """The gradient for 4 by 4 pixels and dY of ones."""
    scales = None if scale is None else (1.0, 1.0, scale, scale)
    dx = gradient(np.ones((1, 2, outputs, outputs), np.float32), (1, 2, 4, 4), mode, scales)
    assert (dx[0, 0] == dx[0, 1]).all()
    return dx[0, 0]


@pytest.mark.parametrize(
    ("outputs", "mode", "scale", "column"),
    [
        (8, "half_pixel", 2.0, [2, 2, 2, 2]),
        (8, "align_corners", 2.0, [12 / 7, 16 / 7, 16 / 7, 12 / 7]),
        (6, "half_pixel", 1.7, [1.64706, 1.79412, 1.67647, 0.88235]),
        (6, "align_corners", 1.7, [1.4, 1.6, 1.6, 1.4]),
    ],
)
def test_ones_give_what_was_worked_out(outputs, mode, scale, column) -> None:
    """Every element is the product of what its row and its column get in all."""
    expected = np.outer(column, column).astype(np.float32)
    assert_matches(of_ones(outputs, mode, scale), expected, 1e-4)


def test_a_worked_table_for_a_scale_of_1_7() -> None:
    expected = [
        [2.7128, 2.9550, 2.7612, 1.4533],
        [2.9550, 3.2189, 3.0078, 1.5830],
        [2.7612, 3.0078, 2.8106, 1.4792],
        [1.4533, 1.5830, 1.4792, 0.7785],
    ]
    assert_matches(of_ones(6, "half_pixel", 1.7), np.float32(expected), 1e-4)


def resize(x, sizes, mode):
    """Linear resizing as a formula on pixels, in JAX.

    Places are NumPy's: compiled code may round one twice, and take the share of another pixel.
    """
    for axis, m in zip((2, 3), sizes, strict=True):
        n = x.shape[axis]
        o = np.arange(m)
        if mode == "align_corners":
            position = o * ((n - 1) / (m - 1) if m > 1 else 0.0)
        else:
            position = np.clip((o + 0.5) * (n / m) - 0.5, 0, n - 1)
        low = np.clip(np.floor(position).astype(int), 0, n - 1)
        shape = [m if i == axis else 1 for i in range(4)]
        share = (position - low).astype(x.dtype).reshape(shape)
        high = np.minimum(low + 1, n - 1)
        x = (1 - share) * jnp.take(x, low, axis) + share * jnp.take(x, high, axis)
    return x


RESIZED = [
    ((2, 3, 4, 5), (8, 10)),
    ((1, 2, 7, 9), (3, 5)),
    ((1, 1, 5, 3), (5, 11)),
    ((1, 1, 1, 6), (4, 1)),
]


def weights(n: int, m: int, mode: str) -> np.ndarray:
    """The share of each of n pixels in each of m, by exact fractions."""
    table = np.zeros((m, n))
    for o in range(m):
        if mode == "align_corners":
            position = Fraction(o * (n - 1), max(m - 1, 1))
        else:
            position = min(max(Fraction(n, m) * (o + Fraction(1, 2)) - Fraction(1, 2), 0), n - 1)
        low = int(position)
        table[o, low] += float(1 - (position - low))
        table[o, min(low + 1, n - 1)] += float(position - low)
    return table


@modes
@pytest.mark.parametrize(("shape", "sizes"), RESIZED)
@pytest.mark.parametrize("level", [0, 3])
def test_the_oracle_is_right_however_it_is_compiled(rng, mode, shape, sizes, level) -> None:
    """Beside fractions: by JAX's steps one by one, and compiled for each level of optimization."""
    x, dy = rng.standard_normal(shape), rng.standard_normal((*shape[:2], *sizes))

    def backward(x, dy):
        return jax.vjp(lambda x: resize(x, sizes, mode), x)[1](dy)[0]

    rows, columns = (weights(n, m, mode) for n, m in zip(shape[2:], sizes, strict=True))
    expected = np.einsum("bcij,iy,jx->bcyx", dy, rows, columns)
    options = {"xla_backend_optimization_level": level}
    compiled = jax.jit(backward, compiler_options=options)(x, dy)
    assert_matches(np.asarray(compiled), expected, 1e-12)
    assert_matches(np.asarray(backward(x, dy)), expected, 1e-12)


@modes
@pytest.mark.parametrize(("shape", "sizes"), RESIZED)
def test_is_the_gradient_of_resizing(rng, mode, shape, sizes) -> None:
    x = rng.standard_normal(shape).astype(np.float32)
    dy = rng.standard_normal((*shape[:2], *sizes)).astype(np.float32)
    (expected,) = vjp(lambda x: resize(x, sizes, mode), (x,), dy)
    assert_matches(gradient(dy, shape, mode), expected)


@pytest.mark.parametrize("sizes", [(8, 10), (4, 15), (9, 5)])
def test_half_pixel_upsampling_is_jaxs_own(rng, sizes) -> None:
    shape = (2, 3, 4, 5)
    dy = rng.standard_normal((*shape[:2], *sizes)).astype(np.float32)
    forward = lambda x: jax.image.resize(x, dy.shape, "linear", antialias=False)  # noqa: E731
    (expected,) = vjp(forward, (np.zeros(shape, dy.dtype),), dy)
    assert_matches(gradient(dy, shape), expected)


@modes
@given(n=st.tuples(extents, extents), m=st.tuples(extents, extents), seed=st.integers(0, 2**32))
def test_nothing_is_lost(mode, n, m, seed) -> None:
    dy = np.random.default_rng(seed).standard_normal((1, 1, *m))
    assert np.isclose(gradient(dy, (1, 1, *n), mode).sum(), dy.sum(), atol=1e-12)


@modes
@given(n=st.tuples(extents, extents), seed=st.integers(0, 2**32))
def test_the_same_size_is_a_copy(mode, n, seed) -> None:
    dy = np.random.default_rng(seed).standard_normal((2, 1, *n))
    assert_matches(gradient(dy, dy.shape, mode), dy, 1e-15)


def test_float64_weights_are_exact_to_float64() -> None:
    """Seven pixels from three, one at a time: the weights as fractions."""
    for o in range(7):
        dy = np.zeros((1, 1, 7, 1))
        dy[0, 0, o, 0] = 1
        position = max(Fraction(3, 7) * (o + Fraction(1, 2)) - Fraction(1, 2), Fraction(0))
        expected = [float(max(1 - abs(min(position, 2) - i), 0)) for i in range(3)]
        actual = gradient(dy, (1, 1, 3, 1))[0, 0, :, 0]
        assert_matches(actual, np.array(expected), 1e-15)
