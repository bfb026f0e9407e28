# SPDX-License-Identifier: MIT
"""The oracle of scaling, division, quantisation and finiteness: JAX, exact models, refusals."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivatives import vjp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cupy_training_ops import get_op
from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, dtype_name
from cupy_training_ops.errors import ArgumentError, DtypeError
from cupy_training_ops.families.elementwise import plan_div_grad
from cupy_training_ops.testing.compare import assert_matches

jax.config.update("jax_enable_x64", True)

NAN, INF = math.nan, math.inf
floats = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)


def normal(rng, *shape: int, dtype=FLOAT64):
    """Normal numbers of at least 0.2 in magnitude."""
    x = np.asarray(rng.standard_normal(shape))
    return (x + np.copysign(0.2, x)).astype(dtype)


# ---- DivGrad -------------------------------------------------------------------------------------

SHAPES = [
    ((3, 4, 5), (2, 1, 1, 1)),
    ((2, 1, 1, 5), (1, 3, 4, 1)),
    ((4, 2, 3, 3), (4, 1, 1, 3)),
    ((2, 3, 4, 5), ()),
    ((2, 3, 4, 5), (5,)),
    ((2, 3, 4, 5), (4, 5)),
    ((1, 4, 5), (2, 3, 1, 1)),
    ((3, 1), (1, 3, 7)),
    ((6, 3, 7), (3, 1)),
    ((4, 5), (4, 5)),
]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_div_grad_is_jax_vector_jacobian_product(rng, shapes, turned) -> None:
    a, b = (normal(rng, *shape) for shape in (shapes[::-1] if turned else shapes))
    dy = normal(rng, *np.broadcast_shapes(a.shape, b.shape))
    gradients = vjp(jnp.divide, (a, b), dy)
    for actual, expected in zip(get_op("DivGrad")()(dy, a, b), gradients, strict=True):
        assert_matches(actual, expected)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_div_grad_is_the_finite_difference(rng, shapes) -> None:
    a, b = (normal(rng, *shape) for shape in shapes)
    dy = normal(rng, *np.broadcast_shapes(a.shape, b.shape))
    da, db = get_op("DivGrad")()(dy, a, b)
    h = 1e-6
    for i in range(a.size):
        step = np.zeros(a.shape)
        step.flat[i] = h
        slope = np.sum(dy * ((a + step) / b - (a - step) / b)) / (2 * h)
        assert abs(slope - da.flat[i]) < 1e-6 * (1 + abs(slope))
    for i in range(b.size):
        step = np.zeros(b.shape)
        step.flat[i] = h
        slope = np.sum(dy * (a / (b + step) - a / (b - step))) / (2 * h)
        assert abs(slope - db.flat[i]) < 1e-6 * (1 + abs(slope))


def test_half_does_not_overflow_inside() -> None:
    """Upstream squares B in half: 300^2 is infinite there, 1e-4^2 zero."""
    dy, a = (np.full(2, value, FLOAT16) for value in (1.0, 2.0))
    b = np.array([300, 1e-2], FLOAT16)
    _, db = get_op("DivGrad")()(dy, a, b)
    expected = -2.0 / b.astype(FLOAT64) ** 2
    np.testing.assert_allclose(db.astype(FLOAT64), expected, rtol=2e-3)


def test_division_by_zero_is_ieee() -> None:
    da, db = get_op("DivGrad")()(*(np.array(v, FLOAT32) for v in ([1, 0, 1], [2, 2, 0], [0, 0, 0])))
    np.testing.assert_array_equal(da, [INF, NAN, INF])
    np.testing.assert_array_equal(db, [-INF, NAN, NAN])


def test_one_gradient_alone(rng) -> None:
    dy, a, b = normal(rng, 3, 4), normal(rng, 3, 4), normal(rng, 4)
    both = get_op("DivGrad")()(dy, a, b)
    da, nothing = get_op("DivGrad")()(dy, a, b, outputs=("dA",))
    assert nothing is None
    assert_matches(da, both[0])
    nothing, db = get_op("DivGrad")()(dy, a, b, outputs=("dB",))
    assert nothing is None
    assert_matches(db, both[1])


def test_shapes_that_do_not_fit_are_refused() -> None:
    x, y, z = np.zeros((2, 3)), np.zeros(2), np.zeros(3)
    with pytest.raises(ArgumentError, match=r"DivGrad: B: expected a shape that broadcasts .*2, 3"):
        get_op("DivGrad")()(x, x, y)
    with pytest.raises(ArgumentError, match=r"DivGrad: dY: expected shape \(2, 3\), .* got \(3,\)"):
        get_op("DivGrad")()(z, x, z)


# ---- broadcasting --------------------------------------------------------------------------------


@given(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=6, min_side=0))
def test_dimensions_keep_sizes_and_order(shapes) -> None:
    a, b = shapes.input_shapes
    dims = plan_div_grad.dimensions(a, b)
    assert math.prod(d.extent for d in dims) == math.prod(shapes.result_shape)
    assert math.prod(d.extent for d in dims if d.in_a) == math.prod(a)
    assert math.prod(d.extent for d in dims if d.in_b) == math.prod(b)
    assert all(d.in_a or d.in_b for d in dims)
    assert all(p[1:] != q[1:] for p, q in itertools.pairwise(dims))


@given(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=6, min_side=1))
def test_strides_find_the_element(shapes) -> None:
    a, b = shapes.input_shapes
    dims = plan_div_grad.dimensions(a, b)
    flat = np.arange(math.prod(b))
    expected = np.broadcast_to(flat.reshape(b), shapes.result_shape).ravel()
    index = np.indices([d.extent for d in dims]).reshape(len(dims), expected.size)
    steps = plan_div_grad.strides(dims, [d.in_b for d in dims])
    assert (np.array(steps, np.int64) @ index == expected).all()


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((6, 5), (5,), (6, 5, 1)),
        ((6, 5), (6, 1), (1, 6, 5)),
        ((2, 3, 4, 5), (3, 1, 1), (2, 3, 20)),
        ((6, 5), (), (1, 1, 30)),
        ((6, 5), (1, 1), (1, 1, 30)),
        ((2, 3, 4), (2, 1, 4), None),
        ((2, 1), (1, 3), None),
    ],
)
def test_outer_middle_inner(a, b, expected) -> None:
    assert plan_div_grad.outer_middle_inner(plan_div_grad.dimensions(a, b), "B") == expected
    assert plan_div_grad.outer_middle_inner(plan_div_grad.dimensions(b, a), "A") == expected


# ---- Scale, BatchScale, ScaledSum ----------------------------------------------------------------


@floats
@pytest.mark.parametrize("scale", [3, 0.3, np.float32(0.3), np.array(7), np.array([0.3], FLOAT16)])
def test_scale_is_one_product_or_quotient(rng, dtype, scale) -> None:
    x, s = normal(rng, 500, dtype=dtype), np.asarray(scale, FLOAT64).reshape(())
    wide = x.astype(FLOAT64)
    assert_matches(get_op("Scale")()(x, scale), (wide * s).astype(dtype))
    assert_matches(get_op("Scale")(scale_down=True)(x, scale), (wide / s).astype(dtype))


def test_scale_down_is_a_true_division() -> None:
    """A product with the rounded reciprocal gives other digits; in half 1 / 1e8 would be zero."""
    x = np.array([1.0, 3.0, 49.0], FLOAT64)
    assert get_op("Scale")(scale_down=True)(x, 49).tolist() == [1 / 49, 3 / 49, 1.0]
    large = np.array([60000.0], FLOAT16)
    assert get_op("Scale")(scale_down=True)(large, 1e8)[0] == FLOAT16.type(6e-4)


@floats
@pytest.mark.parametrize("factor", [1.0, -0.75, INF])
def test_scale_in_place_is_a_product(rng, dtype, factor) -> None:
    x = normal(rng, 5, 7, dtype=dtype)
    expected = (x.astype(FLOAT64) * factor).astype(dtype)
    result = get_op("ScaleInPlace")()(x, np.array([factor], FLOAT32))
    assert result is x
    assert_matches(x, expected)


def test_scale_in_place_takes_one_factor() -> None:
    with pytest.raises(ArgumentError, match=r"factor: expected one element, got shape \(2,\)"):
        get_op("ScaleInPlace")()(np.ones(2, FLOAT32), np.ones(2, FLOAT32))


def test_float64_scale_is_not_rounded_to_float32() -> None:
    one = np.ones(1)
    assert get_op("Scale")()(one, 0.1)[0] == 0.1
    assert get_op("BatchScale")(scale_0=0.1, scale_1=0.7)(one)[0][0] == 0.1
    assert get_op("ScaledSum")(scale_0=0.1, scale_1=0.0)(one, one)[0] == 0.1


@pytest.mark.parametrize("scale", [True, "2", [1, 2], [[1], [1, 2]], np.array([True]), None])
def test_a_scale_that_is_no_number_is_refused(scale) -> None:
    with pytest.raises(ArgumentError, match="Scale: scale: expected"):
        get_op("Scale")()(np.ones(1), scale)


@floats
def test_batch_scale_has_an_output_for_each_scale(rng, dtype) -> None:
    x = normal(rng, 3, 3, dtype=dtype)
    scales = (0.25, -1.5, 0.3)
    three = get_op("BatchScale")(**{f"scale_{i}": s for i, s in enumerate(scales)})(x)
    for y, s in zip(three, scales, strict=True):
        assert_matches(y, (x.astype(FLOAT64) * s).astype(dtype))
    assert get_op("BatchScale")(scale_0=1, scale_1=2)(x)[2] is None


@floats
def test_scaled_sum_rounds_once(rng, dtype) -> None:
    x = [normal(rng, 200, dtype=dtype) for _ in range(3)]
    op = get_op("ScaledSum")(scale_0=0.25, scale_1=-1.5, scale_2=0.3)
    wide = [array.astype(FLOAT64) for array in x]
    assert_matches(op(*x[:2]), (0.25 * wide[0] - 1.5 * wide[1]).astype(dtype))
    assert_matches(op(*x), (0.25 * wide[0] - 1.5 * wide[1] + 0.3 * wide[2]).astype(dtype))


def test_a_third_input_needs_a_third_scale() -> None:
    x = np.ones(3)
    with pytest.raises(ArgumentError, match="ScaledSum: scale_2: expected a number, because"):
        get_op("ScaledSum")(scale_0=1, scale_1=2)(x, x, x)
    with pytest.raises(ArgumentError, match="ScaledSum: scale_1: expected a value"):
        get_op("ScaledSum")(scale_0=1)


def test_other_shapes_and_dtypes_are_refused() -> None:
    x = np.ones((2, 3))
    with pytest.raises(ArgumentError, match=r"input_1: expected shape \(2, 3\), as input_0, got"):
        get_op("ScaledSum")(scale_0=1, scale_1=2)(x, x.T.copy())
    with pytest.raises(DtypeError, match="FakeQuantGrad: gradient_mask: expected dtype bool"):
        get_op("FakeQuantGrad")()(x, x)


# ---- FakeQuant, FakeQuantGrad, IsFinite ----------------------------------------------------------


def test_fake_quant_worked_example() -> None:
    x = np.arange(1, 11, dtype=FLOAT32)
    y, mask = get_op("FakeQuant")()(x, 0.075, 128)
    expected = [0.975, 2.025, 3, 3.975, 5.025, 6, 6.975, 8.025, 9, 9.525]
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    assert mask.tolist() == [True] * 9 + [False]


@given(
    st.lists(st.floats(-50, 50), min_size=1, max_size=20),
    st.sampled_from([0.5, 0.25, 2.0, -0.5]),
    st.integers(-9, 9),
)
def test_fake_quant_is_the_exact_model(values, scale, zero_point) -> None:
    """In exact arithmetic; scales are powers of two, so float64 has no rounding of its own."""
    y, mask = get_op("FakeQuant")(quant_min=-7, quant_max=8)(np.array(values), scale, zero_point)
    for value, got, inside in zip(values, y, mask, strict=True):
        q = round(Fraction(value) / Fraction(scale)) + zero_point
        assert inside == (-7 <= q <= 8)
        assert got == (min(8, max(-7, q)) - zero_point) * Fraction(scale)


@floats
def test_fake_quant_of_special_values(dtype) -> None:
    y, mask = get_op("FakeQuant")(quant_min=-8, quant_max=7)(
        np.array([NAN, INF, -INF, 0], dtype), 0.5, 1
    )
    np.testing.assert_array_equal(y.astype(FLOAT64), [NAN, 3, -4.5, 0])
    assert mask.tolist() == [False, False, False, True]


def test_fake_quant_refuses_what_divides_by_zero_or_clamps_to_nothing() -> None:
    x = np.ones(2, FLOAT32)
    with pytest.raises(ArgumentError, match="FakeQuant: scale: expected a number other than 0"):
        get_op("FakeQuant")()(x, 0.0, 1)
    with pytest.raises(ArgumentError, match="FakeQuant: quant_max: expected at least quant_min, 9"):
        get_op("FakeQuant")(quant_min=9, quant_max=8)
    with pytest.raises(ArgumentError, match=r"FakeQuant: quant_min: .* 1329 bits"):
        get_op("FakeQuant")(quant_min=-(10**400))


@floats
def test_fake_quant_grad_is_a_select(dtype) -> None:
    dy = np.array([NAN, 2, NAN, INF, -0.0], dtype)
    mask = np.array([True, True, False, False, True])
    dx = get_op("FakeQuantGrad")()(dy, mask).astype(FLOAT64)
    np.testing.assert_array_equal(dx, [NAN, 2, 0, 0, 0])
    assert np.signbit(dx[4])


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=dtype_name)
def test_is_finite_of_every_value(dtype) -> None:
    x = np.arange(65_536, dtype=np.uint16).view(dtype)
    with np.errstate(invalid="ignore"):
        expected = [math.isfinite(value) for value in x.astype(FLOAT64)]
    assert get_op("IsFinite")()(x).tolist() == expected
