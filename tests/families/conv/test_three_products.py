# SPDX-License-Identifier: MIT
"""Float32 as three products of TF32: errors beside float64, within bounds that are derived."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cupy_training_ops import ArgumentError, get_op
from cupy_training_ops.dtypes import FLOAT32, FLOAT64

SHAPES = {"X": (2, 32, 6, 7), "W": (64, 32, 3, 2)}
PADS = (1, 0, 1, 1)
NAMES = ("dX", "dW", "dB")


def gradients(run: Any, arrays: list[Any], **mode: bool) -> list[np.ndarray]:
    actual = get_op("ConvGrad")(pads=PADS, **mode)(*map(run.place, arrays))
    return [run.host(a) for a in actual]


def arrays_of(rng: Any, make: Any) -> list[np.ndarray]:
    """dY, X and W."""
    (y,) = get_op("Conv")(pads=PADS).infer(*_specs(), None)
    return [make(rng, shape).astype(FLOAT32) for shape in (y.shape, SHAPES["X"], SHAPES["W"])]


def _specs() -> tuple[Any, ...]:
    from cupy_training_ops.declare.schema import Spec

    return tuple(Spec(shape, FLOAT32) for shape in SHAPES.values())


def in_float64(arrays: list[Any]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The gradients, and those of magnitudes: sums of the magnitudes of all terms."""
    op = get_op("ConvGrad")(pads=PADS)
    wide = [a.astype(FLOAT64) for a in arrays]
    return list(op(*wide)), list(op(*map(np.abs, wide)))


def positive(rng: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Positive numbers with exponents from -8 to 8, so that rounding errors do not cancel."""
    return rng.uniform(1, 2, shape) * 2.0 ** rng.integers(-8, 9, shape)


def signed(rng: Any, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape)


def bound(terms: int) -> float:
    """Errors of a sum of products as a share of the sum of their magnitudes.

    x = high + low exactly, |low| <= 2^-11 |x|, and low is cut by 2^-23 |x| at most. So a product is
    off by |low low| + 2 |high| 2^-23 |x| <= (2^-22 + 2^-22) |x y|, to first order. Tensor cores add
    8 products to a sum at a time, each of the nine cut at 24 bits of the largest, three times; what
    these make of 8 terms is added with rounding to 24 bits, as parts of a sum are (16 at most).
    """
    return 2.0**-21 + (27 + terms / 8 + 16) * 2.0**-24


@pytest.mark.parametrize("make", [positive, signed])
def test_errors_beside_float64(run, rng, make) -> None:
    arrays = arrays_of(rng, make)
    expected, magnitudes = in_float64(arrays)
    actual = gradients(run, arrays, tf32x3=True)
    terms = (64 * 6, arrays[0][:, 0].size)
    for ours, right, size, n in zip(actual, expected, magnitudes, terms, strict=False):
        assert (abs(ours - right) <= bound(n) * size).all()


def test_one_product_is_not_within_the_bound(run, rng) -> None:
    """So the bound tells one product from three, and would notice a part left out."""
    arrays = arrays_of(rng, positive)
    expected, magnitudes = in_float64(arrays)
    actual = gradients(run, arrays, allow_tf32=True)
    for ours, right, size in zip(actual[:2], expected, magnitudes, strict=False):
        assert (abs(ours - right) > 4 * bound(400) * size).mean() > 0.1


def test_small_integers_are_exact(run, rng) -> None:
    """Numbers of 12 bits, whose low part is one, and sums of 24."""
    arrays = arrays_of(rng, lambda rng, shape: rng.integers(-3, 4, shape))
    arrays[1] *= 683  # 12 bits
    expected, _ = in_float64(arrays)
    for ours, right in zip(gradients(run, arrays, tf32x3=True), expected, strict=True):
        np.testing.assert_array_equal(ours, right)


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays_so(run, rng, special) -> None:
    """In dX, of all channels at the places that read it, and in dW of its filter; nowhere else."""
    arrays = arrays_of(rng, signed)
    arrays[0][1, 5, 3, 2] = special
    actual = gradients(run, arrays, tf32x3=True)
    expected, _ = in_float64(arrays)
    for ours, right in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(right))


def test_gradients_are_equal_from_run_to_run(run, rng) -> None:
    arrays = arrays_of(rng, signed)
    one, other = (gradients(run, arrays, tf32x3=True) for _ in range(2))
    assert [a.tobytes() for a in one] == [a.tobytes() for a in other]


@pytest.mark.parametrize("name", ["Conv", "ConvGrad", "ConvTranspose", "ConvTransposeGrad"])
def test_one_mode_at_a_time(name) -> None:
    expected = f"{name}: tf32x3: expected False beside allow_tf32=True, got True"
    with pytest.raises(ArgumentError, match=expected):
        get_op(name)(allow_tf32=True, tf32x3=True)
    assert get_op(name)(tf32x3=1).tf32x3 is True
    with pytest.raises(ArgumentError, match="tf32x3"):
        get_op(name)(tf32x3=3)
