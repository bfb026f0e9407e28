# SPDX-License-Identifier: MIT
"""The reduction oracle against JAX, exact arithmetic, worked tables and upstream's answers."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from references import References

from cupy_training_ops import ArgumentError, DtypeError, get_op
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name
from cupy_training_ops.families.reduction.samples import numbers
from cupy_training_ops.testing.compare import assert_matches

reduction = References("reduction")

jax.config.update("jax_enable_x64", True)

NAN, INF = math.nan, math.inf
INT32, INT64 = np.dtype(np.int32), np.dtype(np.int64)
ANSWERS = np.load(Path(__file__).parents[2] / "data" / "ort_cuda_answers.npz")

floats = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
integers = pytest.mark.parametrize("dtype", [INT32, INT64], ids=dtype_name)


def sum_(data, axes=(), **attributes) -> np.ndarray:
    return get_op("ReduceSumTraining")(**attributes)(data, axes)


def norm(*xs, **attributes) -> np.ndarray:
    return get_op("ReduceAllL2")(**attributes)(list(xs))


def finite(*xs, **attributes) -> bool:
    return bool(get_op("IsAllFinite")(**attributes)(list(xs)))


# ---- ReduceSumTraining ---------------------------------------------------------------------------

DATA = np.arange(1, 13).reshape(3, 2, 2)
SUMS = [
    (DATA, (0, 2), {}, [[[33], [45]]]),
    (DATA, (), {}, [[[78]]]),
    (DATA, (), {"keepdims": False}, 78),
    (DATA, (), {"noop_with_empty_axes": True, "keepdims": False}, DATA),
    (DATA, (0, 1), {"keepdims": False}, [36, 42]),
    (np.arange(1, 13).reshape(3, 4), (0, 1), {}, [[78]]),
    (np.array([[[1, 2], [3, 4]]]), (1,), {"keepdims": False}, [[4, 6]]),
    (np.array([[[1, 2], [3, 4]]]), (-2,), {"keepdims": False}, [[4, 6]]),
    (np.ones((2, 0, 3)), (1,), {}, np.zeros((2, 1, 3))),
    (np.ones((0, 3)), (0,), {"keepdims": False}, np.zeros(3)),
    (np.ones((0, 3)), (1,), {}, np.zeros((0, 1))),
    (np.ones((0,)), (), {}, [0]),
]


@pytest.mark.parametrize("dtype", [*FLOATS, INT32, INT64], ids=dtype_name)
@pytest.mark.parametrize(("data", "axes", "attributes", "expected"), SUMS)
def test_sum_table(dtype, data, axes, attributes, expected) -> None:
    result = sum_(data.astype(dtype), axes, **attributes)
    assert_matches(result, np.asarray(expected).astype(dtype), 0)


@st.composite
def shapes_and_axes(draw) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=9, min_side=0, max_side=3))
    axes = draw(st.lists(st.sampled_from(range(len(shape))), unique=True)) if shape else []
    signs = draw(st.lists(st.booleans(), min_size=len(axes), max_size=len(axes)))
    return shape, tuple(a - len(shape) if s else a for a, s in zip(axes, signs, strict=True))


@given(shapes_and_axes(), st.booleans(), st.integers(0, 2**32 - 1))
def test_sum_is_jax_in_float64(case, keepdims, seed) -> None:
    shape, axes = case
    x = np.random.default_rng(seed).standard_normal(shape)
    expected = np.asarray(jnp.sum(jnp.asarray(x), axis=axes or None, keepdims=keepdims))
    assert_matches(sum_(x, axes, keepdims=keepdims), expected)


@integers
def test_integer_sums_are_exact_modulo_the_type(rng, dtype) -> None:
    """Upstream adds int32 in float32: wrong above 2^24."""
    x = numbers(rng, (7, 501), dtype)
    bits = 8 * dtype.itemsize
    expected = [sum(map(int, row)) for row in x]
    wrapped = [(n + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) for n in expected]
    assert sum_(x, (1,), keepdims=False).tolist() == wrapped
    odd = np.array([2**24, 1, 1, 1], dtype)
    assert sum_(odd, (0,)).tolist() == [2**24 + 3]


@floats
def test_sums_round_once(rng, dtype) -> None:
    """Against sums of fractions, each rounded to the type by NumPy from the nearest float64."""
    x = numbers(rng, (5, 300), dtype)
    exact = [float(sum(map(Fraction, map(float, row)))) for row in x]
    assert_matches(sum_(x, (1,), keepdims=False), np.array(exact).astype(dtype))


def test_sums_in_bfloat16_do_not_round_to_float32_first() -> None:
    """1 + 2^-8 + 2^-40 is nearest to 1 + 2^-7; 1 + 2^-8, its nearest float32, is a tie."""
    x = np.array([1, 2**-8, 2**-40], BFLOAT16)
    assert sum_(x, (0,)) == 1 + 2**-7
    one, total = np.ones(3, BFLOAT16), np.ones((), BFLOAT16)
    assert get_op("DivGrad")()(x, total, one)[0] == 1 + 2**-7


@floats
def test_special_values_go_through_sums(dtype) -> None:
    rows = [[1, NAN], [1, INF], [1, -INF], [INF, -INF], [-0.0, -0.0], [1, 2]]
    expected = [NAN, INF, -INF, NAN, 0, 3]
    result = sum_(np.array(rows).astype(dtype), (1,), keepdims=False)
    assert_matches(result, np.array(expected).astype(dtype), 0)


@pytest.mark.parametrize("axes", [(2,), (-3,), (0, 0), (1, -1)])
def test_wrong_axes_are_named(axes) -> None:
    with pytest.raises(ArgumentError, match="ReduceSumTraining: axes: expected different axes"):
        sum_(np.ones((2, 3), FLOAT32), axes)


# ---- ReduceAllL2 ---------------------------------------------------------------------------------


def test_norm_table() -> None:
    pair = [np.array([1, 2, 3], FLOAT16), np.array([-1, -2], FLOAT16)]
    assert_matches(norm(*pair, output_type="float32"), np.array(19**0.5, FLOAT32))
    assert_matches(norm(*pair), np.array(19**0.5, FLOAT16))


@floats
def test_norms_of_ones(rng, dtype) -> None:
    sizes = rng.integers(0, 4000, 16)
    expected = np.array(math.sqrt(sizes.sum()), FLOAT32)
    assert_matches(norm(*(np.ones(n, dtype) for n in sizes), output_type=1), expected)


@given(
    st.lists(hnp.array_shapes(min_dims=0, max_dims=2, max_side=6), min_size=1, max_size=9),
    st.integers(0, 2**32 - 1),
)
def test_norm_is_jax_in_float64(shapes, seed) -> None:
    rng = np.random.default_rng(seed)
    xs = [rng.standard_normal(shape) for shape in shapes]
    result = np.concatenate([x.ravel() for x in xs])
    whole = np.zeros(9 * 6**2)  # of one length, for which JAX compiles once
    whole[: result.size] = result
    assert_matches(norm(*xs), np.asarray(jnp.linalg.norm(jnp.asarray(whole))))


def test_half_norms_above_256_do_not_overflow(rng) -> None:
    """Upstream adds the squares in half: infinite from 65,504 on."""
    x = (1000 * rng.choice([-1, 1], 4000)).astype(FLOAT16)
    assert_matches(norm(x[:1000]), np.array(1000 * 1000**0.5, FLOAT16))
    assert_matches(norm(x[:1]), np.array(1000, FLOAT16))
    assert norm(np.repeat(x, 2)) == INF  # 89,443


@pytest.mark.parametrize(("value", "expected"), [(NAN, NAN), (-INF, INF), (1e20, 1e20), (0, 0)])
def test_special_norms(value, expected) -> None:
    assert_matches(norm(np.array([value, 0], FLOAT32)), np.array(expected, FLOAT32), 0)


def test_norm_of_float64_has_its_range() -> None:
    assert_matches(norm(np.array([3e100, 4e100])), np.array(5e100))


def test_norm_of_nothing() -> None:
    assert_matches(norm(np.zeros((0, 3), BFLOAT16)), np.zeros((), BFLOAT16))
    with pytest.raises(ArgumentError, match="ReduceAllL2: X: expected at least one array"):
        norm()
    with pytest.raises(DtypeError, match=r"ReduceAllL2: X\[1\]: expected dtype float32"):
        norm(np.ones(1, FLOAT32), np.ones(1, FLOAT16))
    with pytest.raises(DtypeError, match="ReduceAllL2: output_type: expected float32"):
        norm(np.ones(1, FLOAT32), output_type="int32")


# ---- IsAllFinite, All ----------------------------------------------------------------------------

FINITE = [
    (0.0, {}, True), (-0.0, {}, True), (1e-45, {}, True), (3e38, {}, True),
    (INF, {}, False), (-INF, {}, False), (NAN, {}, False),
    (INF, {"isinf_only": True}, False), (-INF, {"isinf_only": 1}, False),
    (NAN, {"isinf_only": True}, True),
    (INF, {"isnan_only": True}, True), (-INF, {"isnan_only": 1}, True),
    (NAN, {"isnan_only": True}, False), (-NAN, {"isnan_only": True}, False),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, BFLOAT16], ids=dtype_name)
@pytest.mark.parametrize(("value", "attributes", "expected"), FINITE)
def test_finite_table(rng, dtype, value, attributes, expected) -> None:
    xs = [numbers(rng, (n,), dtype) for n in (3, 40, 0)]
    xs[1][rng.integers(0, 40)] = value
    assert finite(*xs, **attributes) is expected


def test_every_half_is_finite_or_not() -> None:
    patterns = np.arange(65_536, dtype=np.uint16).view(FLOAT16)
    exponents_of_ones = np.arange(65_536) & 0x7C00 == 0x7C00
    assert finite(patterns[~exponents_of_ones])
    assert not any(finite(patterns[i : i + 1]) for i in np.flatnonzero(exponents_of_ones))


def test_both_restrictions_at_once_are_refused() -> None:
    with pytest.raises(ArgumentError, match="IsAllFinite: isnan_only: expected False"):
        finite(np.ones(1, FLOAT32), isinf_only=True, isnan_only=True)
    with pytest.raises(ArgumentError, match="IsAllFinite: input: expected at least one array"):
        finite()


@pytest.mark.parametrize("n", [*range(1, 256, 7), 1196, 1260, 8845, 8909])
def test_all_of_n(n) -> None:
    def all_(*false: int) -> list[bool]:
        x = np.ones(n, np.bool_)
        x[list(false)] = False
        return get_op("All")()(x).tolist()

    assert all_() == [True]
    assert all_(0) == all_(n - 1) == all_(*range(n)) == [False]


def test_all_of_nothing() -> None:
    assert get_op("All")()(np.zeros((0, 3), np.bool_)).tolist() == [True]


# ---- upstream's own answers ----------------------------------------------------------------------


def answer(case: str) -> tuple[np.ndarray, np.ndarray]:
    return ANSWERS[f"{case}|in|X"], ANSWERS[f"{case}|out0"]


@pytest.mark.parametrize("t", ["f4", "f2"])
@pytest.mark.parametrize("which", ["rows", "cols"])
def test_upstream_sums(t, which) -> None:
    case = f"ReduceSumTraining[{t},{which}]"
    x, expected = answer(case)
    axes = ANSWERS[f"{case}|in|axes"]
    result = sum_(x, axes, keepdims=expected.ndim == 2)
    assert_matches(result, expected, 5e-6 if t == "f4" else 1e-3)


@pytest.mark.parametrize("t", ["f4", "f2"])
def test_upstream_norms_and_finiteness(t) -> None:
    x, expected = answer(f"ReduceAllL2[{t}]")
    assert_matches(norm(x, output_type=expected.dtype), expected, 2e-6)
    x, expected = answer(f"IsAllFinite[{t}]")
    assert_matches(reduction.is_all_finite([x]), expected, 0)


def test_upstream_all() -> None:
    x, expected = answer("All")
    assert_matches(reduction.all(x), expected, 0)
