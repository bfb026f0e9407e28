# SPDX-License-Identifier: MIT
"""The oracle of rotary embeddings against complex numbers, JAX and worked examples."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivatives import vjp

from cupy_training_ops import ArgumentError, DtypeError, rotary_halves, rotary_halves_grad
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, dtype_name
from cupy_training_ops.families.rotary.samples import TYPES, inputs
from cupy_training_ops.testing.compare import assert_matches

jax.config.update("jax_enable_x64", True)

layouts = pytest.mark.parametrize("heads_last", [False, True], ids=["first", "last"])
# Of X with heads first, and how many of cos and sin.
shapes = pytest.mark.parametrize(
    ("shape", "n_angles"), [((2, 3, 5, 8), 2), ((3, 2, 4, 6), 1), ((1, 1, 3, 2), 1)]
)


def lying(x: np.ndarray, heads_last: bool) -> np.ndarray:
    """X with its heads first, as an operator takes it, or the reverse."""
    return np.ascontiguousarray(x.swapaxes(1, 2)) if heads_last else x


def arrays(rng, shape, n_angles, dtype=np.float64):
    """X with heads first, cos, sin."""
    return inputs(rng, shape, n_angles, False, dtype)


def formula(x, cos, sin):
    """X cos + rotate_half(X) sin, as models of transformers have it."""
    half = x.shape[-1] // 2
    turned = jnp.concatenate((-x[..., half:], x[..., :half]), -1)
    return x * cos[:, None] + turned * sin[:, None]


@layouts
@shapes
def test_both_are_jax(rng, shape, n_angles, heads_last) -> None:
    """Halves of cos and sin differ."""
    x, cos, sin = arrays(rng, shape, n_angles)
    dy = rng.standard_normal(shape)
    y = rotary_halves(lying(x, heads_last), cos, sin, heads_last=heads_last)
    assert_matches(lying(y, heads_last), np.asarray(formula(x, cos, sin)))
    (expected,) = vjp(lambda x: formula(x, cos, sin), [x], dy)
    dx = rotary_halves_grad(lying(dy, heads_last), cos, sin, heads_last=heads_last)
    assert_matches(lying(dx, heads_last), expected)


@shapes
def test_equal_halves_turn_complex_numbers(rng, shape, n_angles) -> None:
    """And the gradient turns them back."""
    x, *_ = arrays(rng, shape, n_angles)
    half = shape[-1] // 2
    angles = rng.uniform(-9, 9, (n_angles, shape[2], half))
    cos, sin = (np.concatenate((part, part), -1) for part in (np.cos(angles), np.sin(angles)))
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)[:, None]
    y = rotary_halves(x, cos, sin)
    assert_matches(y, np.concatenate((turned.real, turned.imag), -1))
    assert_matches(rotary_halves_grad(y, cos, sin), x)


def test_a_worked_example() -> None:
    x = np.array([[[[1, 2, 3, 4]]]], np.float32)
    cos, sin = np.array([[[1, 0, 2, 1]]], np.float32), np.array([[[0, 1, 1, 3]]], np.float32)
    # 1*1 - 3*0, 2*0 - 4*1; 3*2 + 1*1, 4*1 + 2*3
    assert rotary_halves(x, cos, sin).tolist() == [[[[1, -4, 7, 10]]]]
    # 1*1 + 3*1, 2*0 + 4*3; 3*2 - 1*0, 4*1 - 2*1
    assert rotary_halves_grad(x, cos, sin).tolist() == [[[[4, 12, 6, 2]]]]


@layouts
@pytest.mark.parametrize(("dtype", "angle_type"), TYPES, ids=dtype_name)
def test_results_are_rounded_once(rng, dtype, angle_type, heads_last) -> None:
    """Results of 16 bits are rounded from sums in float32."""
    x, cos, sin = inputs(rng, (2, 40, 3, 16), 2, True, dtype, angle_type)
    if not heads_last:
        x = lying(x, True)
    result = rotary_halves(x, cos, sin, heads_last=heads_last).astype(np.float64)
    wide = [each.astype(np.float64) for each in (x, cos, sin)]
    exact = rotary_halves(*wide, heads_last=heads_last)
    sizes = [np.abs(each) for each in wide]  # both products of each sum positive
    sizes[2][..., : x.shape[-1] // 2] *= -1
    slack = rotary_halves(*sizes, heads_last=heads_last) * (2.0**-22 if x.itemsize == 2 else 0)
    least, most = ((exact + sign * slack).astype(dtype).astype(np.float64) for sign in (-1, 1))
    assert ((least <= result) & (result <= most)).all()


def test_large_arrays_are_computed_in_pieces(rng) -> None:
    x, cos, sin = arrays(rng, (1, 2, 5000, 64), 1, np.float32)
    assert_matches(rotary_halves(x, cos, sin), np.asarray(formula(x, cos, sin)))
    last = rotary_halves(lying(x, True), cos, sin, heads_last=True)
    assert_matches(lying(last, True), rotary_halves(x, cos, sin), 0)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((4, 6), (1, 4, 6), (1, 4, 6)), r"X: expected rank 4 and an even last extent, got shape"),
        (((2, 3, 4, 5), (1, 4, 5), (1, 4, 5)), r"X: expected rank 4 and an even last extent"),
        (((2, 3, 4, 6), (1, 3, 6), (1, 4, 6)), r"cos: expected shape \(1, 4, 6\) or \(2, 4, 6\)"),
        (((2, 3, 4, 6), (3, 4, 6), (3, 4, 6)), r"cos: expected shape .* got \(3, 4, 6\)"),
        (((1, 3, 4, 6), (4, 6), (1, 4, 6)), r"cos: expected shape \(1, 4, 6\), for X, got \(4, 6"),
        (((2, 3, 4, 6), (1, 4, 6), (1, 4, 3)), r"sin: expected shape .* got \(1, 4, 3\)"),
        (((2, 3, 4, 6), (1, 4, 6), (2, 4, 6)), r"sin: expected shape \(1, 4, 6\), as cos"),
    ],
)
def test_other_shapes_are_refused(anywhere, shapes, message) -> None:
    given = [anywhere.place(np.zeros(shape, np.float32)) for shape in shapes]
    with pytest.raises(ArgumentError, match=f"RotaryHalves: {message}"):
        rotary_halves(*given)
    with pytest.raises(ArgumentError, match=r"RotaryHalvesGrad: (dY|cos|sin): expected"):
        rotary_halves_grad(*given)


def test_another_type_of_angles_is_refused(rng) -> None:
    x, cos, sin = arrays(rng, (2, 3, 4, 6), 1, np.float32)
    with pytest.raises(DtypeError, match="RotaryHalves: "):
        rotary_halves(x, cos.astype(np.float64), sin)
    with pytest.raises(DtypeError, match="RotaryHalves: "):
        rotary_halves(*(each.astype(np.int32) for each in (x, cos, sin)))
    with pytest.raises(DtypeError, match="RotaryHalves: "):
        rotary_halves(x, cos.astype(FLOAT16), sin.astype(FLOAT16))
    with pytest.raises(DtypeError, match="RotaryHalves: "):
        rotary_halves(x.astype(BFLOAT16), cos, sin.astype(BFLOAT16))
