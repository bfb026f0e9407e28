# SPDX-License-Identifier: MIT
"""The comparison that all kernel tests rest on cannot be fooled."""

from __future__ import annotations

import numpy as np
import pytest

from cupy_training_ops.dtypes import ELEMENT_TYPES, FLOATS, dtype_name
from cupy_training_ops.testing.compare import (
    ROOT_TOLERANCE,
    TF32_TOLERANCE,
    TOLERANCE,
    assert_matches,
    poison,
    tolerance_of,
)

DTYPES = [row.dtype for row in ELEMENT_TYPES]
EXACT = [dtype for dtype in DTYPES if dtype not in FLOATS]


def differ(actual, expected, tolerance=None) -> None:
    with pytest.raises(AssertionError):
        assert_matches(actual, expected, tolerance)


def values(rng: np.random.Generator, dtype, n: int = 64) -> np.ndarray:
    """What an operator might compute: among it zeros, ones and large numbers."""
    drawn = rng.integers(0, 2, n) * (rng.standard_normal(n) * 10.0 ** rng.uniform(-3, 2, n))
    return np.abs(drawn).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("tolerance", [None, 0])
def test_equal_arrays_match(rng, dtype, tolerance) -> None:
    x = values(rng, dtype)
    assert_matches(x, x.copy(), tolerance)


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (np.nan, 1.0),
        (1.0, np.nan),
        (np.nan, np.inf),
        (np.inf, np.nan),
        (np.inf, -np.inf),
        (-np.inf, np.inf),
        (np.inf, 60_000.0),
        (60_000.0, np.inf),
        (-np.inf, -60_000.0),
    ],
)
def test_nan_and_infinity_match_nothing_else(rng, dtype, actual, expected) -> None:
    x = values(rng, dtype)
    y = x.copy()
    place = rng.integers(x.size)
    x[place], y[place] = actual, expected
    for tolerance in (None, 0, 1e6):
        differ(x, y, tolerance)


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
def test_nan_and_infinity_match_themselves(rng, dtype) -> None:
    x = values(rng, dtype)
    x[rng.permutation(x.size)[:3]] = np.array([np.nan, np.inf, -np.inf], dtype)
    for tolerance in (None, 0):
        assert_matches(x.copy(), x, tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_an_element_nobody_wrote_is_found(rng, dtype) -> None:
    expected = values(rng, dtype)
    for wanted in (0, 1, *rng.choice(expected, 3)):
        expected[:] = wanted
        actual = expected.copy()
        place = rng.integers(expected.size)
        poison(actual[place : place + 1])
        differ(actual, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
def test_poison_fills_every_byte_of_an_array(rng, dtype) -> None:
    filled = poison(values(rng, dtype).reshape(4, 16))
    assert filled.shape == (4, 16)
    assert len(set(filled.tobytes())) == 1
    if dtype in FLOATS:
        assert (np.abs(filled.astype(np.float64)) > 1e4).all()


def test_an_empty_array_can_be_poisoned_and_compared() -> None:
    empty = np.empty((0, 3), np.float32)
    assert_matches(poison(empty), empty.copy())


def test_a_scalar_can_be_compared() -> None:
    assert_matches(np.float32(1.5).reshape(()), np.full((), 1.5, np.float32))
    differ(np.full((), 1.5, np.float32), np.full((), 1.625, np.float32))


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
@pytest.mark.parametrize("size", [0.0, 1.0, -100.0])
def test_the_tolerance_is_the_tables(dtype, size) -> None:
    expected = np.full(3, size, np.float64)
    allowed = TOLERANCE[dtype_name(dtype)] * (1 + abs(size))
    step = 2.0 ** np.floor(np.log2(max(abs(size), 1e-2) * float(np.finfo(np.float64).eps)))
    wide = max(4 * step, allowed * 0.02)
    inside, outside = expected + allowed - wide, expected + allowed + wide
    tolerance = tolerance_of(dtype)
    assert_matches(inside, expected, tolerance)
    differ(outside, expected, tolerance)


@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
def test_the_tolerance_of_sums_grows_with_the_root_of_their_length(dtype) -> None:
    assert tolerance_of(dtype, 10) == tolerance_of(dtype) > 0
    assert tolerance_of(dtype, 10**12) == ROOT_TOLERANCE[dtype_name(dtype)] * 10**6
    assert tolerance_of(dtype, 10**12) > tolerance_of(dtype)


def test_tf32_has_fewer_bits() -> None:
    assert tolerance_of(np.float32, 100, tf32=True) == 10 * TF32_TOLERANCE
    assert tolerance_of(np.float16, 100, tf32=True) == tolerance_of(np.float16, 100)


@pytest.mark.parametrize("dtype", EXACT, ids=dtype_name)
def test_integers_and_bools_have_no_tolerance(rng, dtype) -> None:
    assert tolerance_of(dtype) == tolerance_of(dtype, 10**12, tf32=True) == 0
    expected = values(rng, dtype)
    actual = expected.copy()
    actual[7] = not actual[7] if dtype == np.bool_ else actual[7] + 1
    differ(actual, expected)
    differ(actual, expected, 0.5)


def test_large_integers_are_not_compared_as_floats() -> None:
    differ(np.array([2**62 + 1]), np.array([2**62]))


def test_dtype_and_shape_must_be_the_same(rng) -> None:
    x = values(rng, np.float32)
    for other in (x.astype(np.float64), x.reshape(8, 8), x[:-1], x[None]):
        differ(other, x)
    differ(np.zeros(2, np.float16), np.zeros(2, np.uint16))


def test_the_worst_element_is_named(rng) -> None:
    expected = values(rng, np.float32).reshape(8, 8)
    actual = expected.copy()
    actual[1, 2] += 100
    actual[3, 4] += 1000
    with pytest.raises(AssertionError, match=r"2 of 64 elements .* worst at \(3, 4\): got "):
        assert_matches(actual, expected)


def test_nan_is_the_worst(rng) -> None:
    expected = values(rng, np.float64)
    actual = expected.copy()
    actual[5] += 1e300
    actual[50] = np.nan
    with pytest.raises(AssertionError, match=r"worst at \(50,\): got .*nan"):
        assert_matches(actual, expected)


def test_slack_is_an_elements_own(rng) -> None:
    expected = values(rng, np.float32)
    actual, slack = expected.copy(), np.zeros(expected.shape)
    actual[3] += 0.5
    slack[3] = 0.6
    assert_matches(actual, expected, slack=slack)
    with pytest.raises(AssertionError, match=r"1 of \d+ elements .* worst at \(3,\)"):
        assert_matches(actual, expected, slack=slack[::-1])
