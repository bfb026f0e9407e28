# SPDX-License-Identifier: MIT
"""Activations that wait as 16 bits: those of smooth functions, and of products of two."""

from __future__ import annotations

import numpy as np
import pytest

import cupy_training_ops as cto

PLACES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]


def kept(x: np.ndarray, need: str, place: str, policy: str = "default"):
    """What comes back of an array, and the codec that it waited in."""
    if place == "cuda":
        import cupy

        given = cupy.asarray(x)
    else:
        given = x.copy()
    with cto.ActivationStash(policy) as stash:
        stash.put("x", given, need)
        del given
        actual = stash.get("x")
        codec = stash.report()["names"]["x"]["codec"]
    return actual if place == "cpu" else actual.get(), codec


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("need", ["smooth", "product"])
def test_ordinary_numbers_are_rounded_to_16_bits(need: str, place: str, rng) -> None:
    x = rng.standard_normal((4, 3, 16, 8)).astype(np.float32)
    actual, codec = kept(x, need, place)
    assert codec == "pack16"
    np.testing.assert_array_equal(actual, x.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("need", ["smooth", "product"])
@pytest.mark.parametrize("sign", [-1, 1])
def test_numbers_of_one_sign_are_as_ordinary(sign: int, need: str, place: str, rng) -> None:
    x = (sign * rng.uniform(0.5, 2.0, (512, 8))).astype(np.float32)
    actual, codec = kept(x, need, place)
    assert codec == "pack16"
    np.testing.assert_array_equal(actual, x.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("need", ["smooth", "product"])
@pytest.mark.parametrize("value", [7e4, -7e4, np.nan, np.inf, None])
def test_what_16_bits_do_not_hold_stays(value, need: str, place: str, rng) -> None:
    x = rng.standard_normal((4, 3, 16, 8)).astype(np.float32)
    if value is None:
        x *= 1e-3  # all below 2^-6, of which too few bits would be left
    else:
        x[1, 2, 3, 4] = value
    actual, codec = kept(x, need, place)
    assert codec is None
    np.testing.assert_array_equal(actual, x)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("mean", "is_coded"), [(3.0, True), (6.0, False)])
@pytest.mark.parametrize("shape", [(512, 8), (8, 4, 64, 8)])
def test_features_far_from_zero_forbid_products_alone(
    shape, mean: float, is_coded: bool, place: str, rng
) -> None:
    """Of heads each has its own features: means of both signs do not hide each other."""
    signs = rng.choice([-1, 1], (*shape[1:2], 1, shape[-1]) if len(shape) == 4 else shape[-1:])
    x = (rng.standard_normal(shape) + mean * signs).astype(np.float32)
    assert kept(x, "product", place)[1] == ("pack16" if is_coded else None)
    assert kept(x, "smooth", place)[1] == "pack16"


@pytest.mark.parametrize("need", ["smooth", "product"])
def test_half_types_stay_and_lossless_is_lossless(need: str, rng) -> None:
    x = rng.standard_normal((64, 8)).astype(np.float32)
    assert kept(x.astype(np.float16), need, "cpu")[1] is None
    actual, codec = kept(x, need, "cpu", "lossless")
    assert codec == "sparse"
    np.testing.assert_array_equal(actual, x)
