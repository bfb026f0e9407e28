# SPDX-License-Identifier: MIT
"""The gradient oracle against JAX, exact arithmetic, worked tables and upstream's answers."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import References

from cupy_training_ops import ArgumentError, DtypeError, get_op
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name
from cupy_training_ops.families.gradient.samples import special
from cupy_training_ops.testing.compare import assert_matches

gradient = References("gradient")

jax.config.update("jax_enable_x64", True)

NAN, INF = np.nan, np.inf
NARROW = (FLOAT32, FLOAT16, BFLOAT16)
ANSWERS = np.load(Path(__file__).parents[2] / "data" / "ort_cuda_answers.npz")

sums = pytest.mark.parametrize("t", FLOATS, ids=dtype_name)
values = pytest.mark.parametrize("v", FLOATS, ids=dtype_name)


def normal(rng: np.random.Generator, shape, dtype) -> np.ndarray:
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def accumulate(old_sum, value, *flag, **call):
    return get_op("InPlaceAccumulator")()(old_sum, value, *flag, **call)


def accumulate_v2(buffer, value, *flag, **call):
    return get_op("InPlaceAccumulatorV2")()(buffer, value, *flag, **call)


def scale(s, *xs, to, **attributes):
    return get_op("MixedPrecisionScale")(to=to, **attributes)(np.array(s, FLOAT32), list(xs))


# ---- InPlaceAccumulator and its kin --------------------------------------------------------------


@pytest.mark.parametrize("v", [FLOAT32, FLOAT16], ids=dtype_name)
def test_accumulation_is_in_place(v) -> None:
    old_sum = np.array([1, 2, 3], FLOAT32)
    result = accumulate(old_sum, np.array([4, 5, 6], v))
    assert result is old_sum
    assert old_sum.tolist() == [5, 7, 9]


@sums
@values
def test_accumulation_is_jax_in_float64(rng, t, v) -> None:
    """Sums of narrow types are exact in float64, so that the rounding to T is the only one."""
    old_sum, value = normal(rng, (9, 31), t), normal(rng, (9, 31), v)
    exact = np.asarray(jnp.asarray(old_sum.astype(FLOAT64)) + jnp.asarray(value.astype(FLOAT64)))
    assert_matches(accumulate(old_sum, value), exact.astype(t))


@pytest.mark.parametrize("t", [FLOAT16, BFLOAT16], ids=dtype_name)
def test_accumulation_rounds_once(rng, t) -> None:
    """Upstream rounds the value to T before it adds."""
    old_sum, value = normal(rng, 4000, t), normal(rng, 4000, FLOAT32)
    pairs = zip(old_sum.tolist(), value.tolist(), strict=True)
    exact = np.array([float(Fraction(float(a)) + Fraction(b)) for a, b in pairs])
    once = exact.astype(FLOAT32).astype(t)
    twice = old_sum + value.astype(t)
    assert (twice != once).any()
    assert_matches(accumulate(old_sum, value), once, 0)


FALSE = [
    False,
    np.bool_(False),
    0,
    np.int64(0),
    np.array(False),
    np.array([False]),
    np.array([[0]]),
]


@pytest.mark.parametrize("flag", FALSE, ids=repr)
def test_without_the_signal_nothing_changes(rng, flag) -> None:
    old_sum, value = normal(rng, 100, FLOAT16), normal(rng, 100, FLOAT16)
    before, out = old_sum.copy(), np.empty_like(old_sum)
    assert accumulate(old_sum, value, flag) is old_sum
    assert_matches(accumulate(old_sum, value, flag, out=out), before, 0)
    assert_matches(old_sum, before, 0)


def test_an_out_of_its_own_spares_the_sum(rng) -> None:
    old_sum, value = normal(rng, 100, FLOAT32), normal(rng, 100, FLOAT32)
    before, out = old_sum.copy(), np.empty_like(old_sum)
    assert accumulate(old_sum, value, out=out) is out
    assert_matches(out, before + value)
    assert_matches(old_sum, before, 0)


def test_version_2_adds_or_overwrites() -> None:
    buffer, value = np.array([1, 2, 3], FLOAT32), np.array([4, 5, 6], FLOAT16)
    flag, result = accumulate_v2(buffer, value)
    assert flag.dtype == np.bool_
    assert (flag.tolist(), result.tolist()) == ([True], [5, 7, 9])
    assert result is buffer
    flag, result = accumulate_v2(buffer, value, True)
    assert (flag.tolist(), buffer.tolist()) == ([True], [4, 5, 6])
    assert accumulate_v2(buffer, value, outputs=("updated_flag",))[1] is None
    assert buffer.tolist() == [8, 10, 12]


def test_a_flag_that_comes_back_may_be_given_again() -> None:
    buffer, value = np.array([1, 2], FLOAT32), np.array([4, 5], FLOAT32)
    flag, _ = accumulate_v2(buffer, value)
    assert accumulate(buffer, value, flag).tolist() == [9, 12]
    assert accumulate_v2(buffer, value, flag)[1].tolist() == [4, 5]


@pytest.mark.parametrize(
    "flag", [2, 1.0, "x", np.array([True, False]), np.array([1.0]), [[1], [1, 0]]]
)
def test_what_is_not_one_bool_is_refused(flag) -> None:
    with pytest.raises(ArgumentError, match="InPlaceAccumulator: update_signal: expected a bool"):
        accumulate(np.ones(2, FLOAT32), np.ones(2, FLOAT32), flag)


@sums
@values
def test_overwriting_rounds_what_was_nan(rng, t, v) -> None:
    buffer, value = np.full(500, NAN).astype(t), normal(rng, 500, v)
    _, result = accumulate_v2(buffer, value, True)
    assert_matches(result, value.astype(t), 0)


def test_lists_accumulate_like_pairs(rng) -> None:
    shapes = ((3, 5), (0, 2), (), (7,))
    old_sums = [normal(rng, shape, FLOAT32) for shape in shapes]
    added = [normal(rng, shape, BFLOAT16) for shape in shapes]
    expected = [a + b.astype(FLOAT32) for a, b in zip(old_sums, added, strict=True)]
    results = get_op("InPlaceAccumulatorList")()(old_sums, added)
    for result, old_sum, wanted in zip(results, old_sums, expected, strict=True):
        assert result is old_sum
        assert_matches(result, wanted)


@pytest.mark.parametrize("t", FLOATS, ids=dtype_name)
def test_special_values_go_through_accumulation(t) -> None:
    x = special(t)
    old_sum, value = (a.copy() for a in np.meshgrid(x, x, indexing="ij"))
    with np.errstate(all="ignore"):
        expected = (old_sum.astype(FLOAT64) + value.astype(FLOAT64)).astype(t)
    assert_matches(accumulate(old_sum, value), expected)


def test_shapes_that_differ_are_refused() -> None:
    """Upstream never compares them and reads past the end."""
    x, y = np.ones((2, 3), FLOAT32), np.ones(6, FLOAT32)
    with pytest.raises(ArgumentError, match=r"InPlaceAccumulator: value: expected shape \(2, 3\)"):
        accumulate(x, y)
    with pytest.raises(ArgumentError, match="like accumulation_buffer, got shape"):
        accumulate_v2(x, y)
    with pytest.raises(ArgumentError, match=r"values\[1\]: expected shape \(2, 3\) like old_sums"):
        get_op("InPlaceAccumulatorList")()([y, x], [y, y])
    with pytest.raises(ArgumentError, match="values: expected 1 arrays like old_sums, got 2"):
        get_op("InPlaceAccumulatorList")()([y], [y, y])
    with pytest.raises(DtypeError, match="InPlaceAccumulator: value: expected dtype float32"):
        accumulate(x, np.ones((2, 3), np.int32))


# ---- ZeroGradient --------------------------------------------------------------------------------


@sums
def test_zeroing_clears_all_bytes_in_place(rng, t) -> None:
    gradient_ = normal(rng, (3, 7), t)
    gradient_[0, :3] = NAN, -INF, -0.0
    assert get_op("ZeroGradient")()(gradient_, np.array([1, 10, 100], np.int64)) is gradient_
    assert not gradient_.tobytes().strip(b"\0")


# ---- MixedPrecisionScale -------------------------------------------------------------------------


@pytest.mark.parametrize("x", NARROW, ids=dtype_name)
@pytest.mark.parametrize("y", NARROW, ids=dtype_name)
def test_scale_table(x, y) -> None:
    arrays = [np.array([1, 2, 3], x), np.array([[4, 5], [6, 7]], x)]
    tenths = [np.array(a.astype(FLOAT32) * FLOAT32.type(0.1)).astype(y) for a in arrays]
    for result, expected in zip(scale(0.1, *arrays, to=y), tenths, strict=True):
        assert_matches(result, expected, 0)
    (fused,) = scale([0.1], *arrays, to=y, fuse_outputs=True)
    assert_matches(fused, np.concatenate([t.ravel() for t in tenths]), 0)


@pytest.mark.parametrize("x", FLOATS, ids=dtype_name)
@pytest.mark.parametrize("y", FLOATS, ids=dtype_name)
def test_scaling_is_jax_in_float64(rng, x, y) -> None:
    array, s = normal(rng, (9, 31), x), FLOAT32.type(rng.uniform(0.5, 3))
    exact = np.asarray(jnp.asarray(array.astype(FLOAT64)) * float(s)).astype(y)
    tolerance = 2e-7 if y == FLOAT64 and x != FLOAT64 else None  # the product is float32
    assert_matches(scale(s, array, to=y)[0], exact, tolerance)


@pytest.mark.parametrize("t", [FLOAT16, BFLOAT16], ids=dtype_name)
def test_products_are_taken_in_float32(rng, t) -> None:
    x, s = normal(rng, 4000, t), FLOAT32.type(0.1)
    expected = (x.astype(FLOAT32) * s).astype(t)
    assert (x * s.astype(t) != expected).any()
    assert_matches(scale(s, x, to=t)[0], expected, 0)


def test_products_that_do_not_fit_are_infinite() -> None:
    x = np.array([16376, 16380, -INF, NAN], FLOAT16)
    assert_matches(scale(4, x, to=10)[0], np.array([65504, INF, -INF, NAN], FLOAT16), 0)


def test_wrong_scales_are_named() -> None:
    x = np.ones(3, FLOAT32)
    with pytest.raises(ArgumentError, match="MixedPrecisionScale: S: expected one element"):
        scale([1, 2], x, to=10)
    with pytest.raises(ArgumentError, match="MixedPrecisionScale: X: expected at least one array"):
        scale(1, to=10)
    with pytest.raises(ArgumentError, match="MixedPrecisionScale: to: expected a value"):
        get_op("MixedPrecisionScale")()
    with pytest.raises(DtypeError, match="MixedPrecisionScale: to: expected float32"):
        scale(1, x, to="int32")


# ---- upstream's own answers ----------------------------------------------------------------------


def answer(case: str, *names: str) -> tuple[np.ndarray, ...]:
    return (*(ANSWERS[f"{case}|in|{name}"] for name in names), ANSWERS[f"{case}|out0"])


@pytest.mark.parametrize("case", ["InPlaceAccumulator[f4,f4]", "InPlaceAccumulator[f4,f2]"])
def test_upstream_accumulation(case) -> None:
    old_sum, value, expected = answer(case, "old", "value")
    assert_matches(gradient.in_place_accumulator(old_sum, value), expected, 0)


@pytest.mark.parametrize("t", ["f4", "f2"])
def test_upstream_zeros_and_scales(t) -> None:
    x, signal, expected = answer(f"ZeroGradient[{t}]", "G", "S")
    assert_matches(gradient.zero_gradient(x, signal), expected, 0)
    s, x, expected = answer(f"MixedPrecisionScale[{t}]", "S", "X")
    assert_matches(gradient.mixed_precision_scale(s, [x], to=expected.dtype)[0], expected, 0)
