# SPDX-License-Identifier: MIT
"""The guard's numbers against exact fractions, laws, and what a consumer decides by them."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msfp15_model import model_decode, model_encode, model_exponent

import cupy_training_ops as cto
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name

INF = math.inf
floats = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)


@np.errstate(all="ignore")
def cast(x, dtype) -> np.ndarray:
    return np.asarray(x).astype(dtype)


# ---- the guard by its formula, in fractions ------------------------------------------------------


def deviation(values: list[Fraction]) -> Fraction:
    mean = sum(values, Fraction(0)) / max(len(values), 1)
    return sum(((v - mean) ** 2 for v in values), Fraction(0))


def in_tiles(x: list[float]) -> list[list[float]]:
    return [x[i : i + 8] for i in range(0, len(x), 8)]


def quantized(tile: list[float]) -> list[float]:
    codes = model_encode(tile + [0.0] * (8 - len(tile)), keep_sign=True)
    return model_decode(codes)[: len(tile)]


def members(c: int, grouping: tuple[int, int, int]) -> list[int]:
    outer, groups, inner = grouping
    return [(a * groups + c) * inner + b for a in range(outer) for b in range(inner)]


def ratio(error: Fraction, spread: Fraction) -> float:
    if error == 0:
        return 0.0
    return float(error / spread) if error < 2**32 * spread else INF


def model_guard(x: list[float], grouping: tuple[int, int, int] | None) -> list[float]:
    tiles = in_tiles(x)
    top = max((model_exponent(v) for v in x), default=0)
    if top == 255:
        return [INF, 0, 0, INF]
    values = [Fraction(v) for v in x]
    errors = [
        (Fraction(v) - Fraction(q)) ** 2
        for tile in tiles
        for v, q in zip(tile, quantized(tile), strict=True)
    ]
    groups = [members(c, grouping) for c in range(grouping[1])] if grouping else []
    spreads = [deviation([values[i] for i in group]) for group in groups]
    of_groups = [sum((errors[i] for i in group), Fraction(0)) for group in groups]
    sums = (
        sum(errors, Fraction(0)),
        sum((deviation([Fraction(v) for v in tile]) for tile in tiles), Fraction(0)),
        sum(spreads, Fraction(0)),
    )
    worst = max((ratio(*pair) for pair in zip(of_groups, spreads, strict=True)), default=0.0)
    return [*(float(s / Fraction(4) ** (top - 127)) for s in sums), worst]


def assert_is_models(x: np.ndarray, grouping, rtol: float = 1e-6) -> None:
    codes, guard = cto.gist_guarded_msfp15_encoder(x, grouping=grouping)
    np.testing.assert_array_equal(codes, cto.gist_pack_msfp15_encoder(x, keep_sign=True))
    assert guard.dtype == FLOAT32
    assert guard.shape == (4,)
    expected = model_guard(cast(x, FLOAT64).ravel().tolist(), grouping)
    with np.errstate(over="ignore", under="ignore"):  # as float32 holds it
        np.testing.assert_allclose(guard, np.array(expected).astype(FLOAT32), rtol=rtol)


# ---- against the model ---------------------------------------------------------------------------

GROUPINGS = [
    None,
    (1, 6, 24),
    (24, 6, 1),
    (2, 6, 12),
    (1, 144, 1),
    (144, 1, 1),
    (1, 1, 144),
    (16, 9, 1),
    (3, 3, 16),
    (1, 12, 12),
]


@floats
@pytest.mark.parametrize("grouping", GROUPINGS, ids=str)
def test_random_tensors_are_the_models(rng, dtype, grouping) -> None:
    for mean, spread in ((0, 1), (3, 1), (100, 1), (0, 2.0**-9)):
        x = cast(mean + spread * rng.standard_normal(144), dtype)
        assert_is_models(x, grouping)


@floats
@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 23])
def test_short_tensors_are_the_models(rng, dtype, n) -> None:
    x = cast(rng.standard_normal(n), dtype)
    for grouping in (None, (1, 1, n), (n, 1, 1), (1, n, 1)):
        assert_is_models(x, grouping)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16, FLOAT64], ids=dtype_name)
@pytest.mark.parametrize("scale", [2.0**120, 1e30, 1e-30, 2.0**-126, 2.0**-135, 2.0**-148])
def test_large_and_tiny_magnitudes_are_the_models(rng, dtype, scale) -> None:
    """Squares of 1e30 are no float32."""
    x = cast(rng.standard_normal(96) * scale, dtype)
    for grouping in (None, (1, 4, 24), (4, 24, 1)):
        assert_is_models(x, grouping)


def test_numbers_below_float32_are_the_models() -> None:
    x = np.array([1e-300, -1e-310, 5e-324, 0, -0.0, 1e-40] * 4)
    for grouping in (None, (1, 4, 6), (6, 4, 1)):
        assert_is_models(x, grouping)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=dtype_name)
def test_large_means_do_not_cancel(rng, dtype) -> None:
    """1e4 with deviation 1, or 1e7 with 3; the first element may be far away, too."""
    for mean, spread, first in ((1e4, 1, 0.0), (1e4, 1, 1e6), (1e4, 1, 1e4), (1e7, 3, 1e7)):
        x = cast(mean + spread * rng.standard_normal((32, 16)), dtype)
        x[0, 0] = first
        for grouping in ((1, 32, 16), (32, 16, 1), (1, 1, 512)):
            assert_is_models(x, grouping)


NUMBERS = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1e-45, -1e-40, 1.0, 1.0, 1e38, INF])


@given(st.lists(NUMBERS, min_size=1, max_size=32), st.integers(1, 8))
def test_any_tensor_is_the_models(values, groups) -> None:
    x = np.array(values * groups, FLOAT32)
    for grouping in ((1, groups, len(values)), (len(values), groups, 1)):
        assert_is_models(x, grouping, 1e-5)


# ---- laws ----------------------------------------------------------------------------------------


@floats
def test_what_the_format_holds_has_no_error(dtype) -> None:
    x = cast(np.tile(np.arange(32, 64), (4, 1)) / 32, dtype)
    _, guard = cto.gist_guarded_msfp15_encoder(x, grouping=(1, 4, 32))
    assert guard[0] == 0
    assert guard[3] == 0
    assert guard[1] > 0
    assert guard[2] > 0


def test_a_group_that_does_not_deviate_is_infinitely_bad() -> None:
    x = np.full((8, 16), 1.01, FLOAT32)
    x[:, 0] = 3
    _, guard = cto.gist_guarded_msfp15_encoder(x, grouping=(8, 16, 1))
    assert guard[3] == INF
    assert guard[2] == 0


@floats
@pytest.mark.parametrize("bad", [math.nan, INF, -INF])
@pytest.mark.parametrize("keep", [False, True])
def test_a_tensor_that_is_not_finite_is_decided(rng, dtype, bad, keep) -> None:
    x = cast(rng.standard_normal((4, 24)), dtype)
    x[2, 5] = bad
    for grouping in (None, (1, 4, 24), (4, 24, 1), (2, 24, 2)):
        options = {"keep_nonfinite": keep}
        codes, guard = cto.gist_guarded_msfp15_encoder(x, grouping=grouping, **options)
        expected = cto.gist_pack_msfp15_encoder(x, keep_sign=True, **options)
        np.testing.assert_array_equal(codes, expected)
        assert guard.tolist() == [INF, 0, 0, INF]


def test_float64_beyond_float32_is_not_finite() -> None:
    _, guard = cto.gist_guarded_msfp15_encoder(np.array([1.0, 2.0**128]))
    assert guard.tolist() == [INF, 0, 0, INF]


@floats
@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0)])
def test_nothing_has_no_error(dtype, shape) -> None:
    for grouping in (None, (*shape, 1) if len(shape) == 2 else (0, 3, 2)):
        codes, guard = cto.gist_guarded_msfp15_encoder(np.zeros(shape, dtype), grouping=grouping)
        assert codes.shape == shape
        assert guard.tolist() == [0] * 4


@floats
def test_zeros_have_no_error(dtype) -> None:
    x = cast([0.0, -0.0] * 12, dtype)
    for grouping in GROUPINGS_OF_24:
        _, guard = cto.gist_guarded_msfp15_encoder(x, grouping=grouping)
        assert guard.tolist() == [0] * 4


GROUPINGS_OF_24 = [None, (1, 3, 8), (3, 8, 1), (2, 3, 4)]


def test_it_decides_as_a_layer_norm_needs(rng) -> None:
    """Rows of mean 100 have errors beside which they hardly deviate; those about zero do not."""
    x = rng.standard_normal((64, 256)).astype(FLOAT32)
    limit = 0.06**2
    for mean, passes in ((0, True), (1, True), (30, False), (100, False)):
        _, guard = cto.gist_guarded_msfp15_encoder(x + FLOAT32.type(mean), grouping=(1, 64, 256))
        assert (guard[3] <= limit) is np.bool_(passes)


def test_a_float16_is_measured_in_its_own_numbers(rng) -> None:
    x = (rng.standard_normal(800) * 2.0**-20).astype(FLOAT16)
    assert_is_models(x, (1, 8, 100))
