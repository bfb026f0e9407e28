# SPDX-License-Identifier: MIT
"""The activation oracle against finite differences, JAX, hand-worked values and limits."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from derivatives import vjp
from references import computed

from cupy_training_ops import get_op
from cupy_training_ops.dtypes import FLOAT32, FLOAT64, FLOATS, dtype_name
from cupy_training_ops.errors import ArgumentError
from cupy_training_ops.families.activation.operators import OPS
from cupy_training_ops.testing.compare import assert_matches

jax.config.update("jax_enable_x64", True)

NAN, INF = math.nan, math.inf
PI = Decimal("3.14159265358979323846264338327950288419716939937510582")
ALPHA = {"LeakyReluGrad": 0.3, "QuickGeluGrad": -1.3}

# Forward operators: for finite differences with NumPy's functions, for automatic differentiation
# with JAX's own.
FORWARD = {
    "ReluGrad": lambda x: np.maximum(x, 0),
    "LeakyReluGrad": lambda x: np.where(x > 0, x, 0.3 * x),
    "SigmoidGrad": lambda x: 1 / (1 + np.exp(-x)),
    "TanhGrad": np.tanh,
    "GeluGrad": lambda x: x * np.vectorize(math.erf)(x / math.sqrt(2)) / 2 + x / 2,
    "FastGeluGrad": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "QuickGeluGrad": lambda x: x / (1 + np.exp(1.3 * x)),
}
JAX = {
    "ReluGrad": jax.nn.relu,
    "LeakyReluGrad": lambda x: jax.nn.leaky_relu(x, 0.3),
    "SigmoidGrad": jax.nn.sigmoid,
    "TanhGrad": jnp.tanh,
    "GeluGrad": lambda x: jax.nn.gelu(x, approximate=False),
    "FastGeluGrad": lambda x: jax.nn.gelu(x, approximate=True),
    "QuickGeluGrad": lambda x: x * jax.nn.sigmoid(-1.3 * x),
}
BIASED = {"BiasGeluGrad_dX": "GeluGrad", "BiasFastGeluGrad_dX": "FastGeluGrad"}
FORWARD_OPS = {"Gelu": "GeluGrad", "FastGelu": "FastGeluGrad", "QuickGelu": "QuickGeluGrad"}

gradients = pytest.mark.parametrize("name", FORWARD)
floats = pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)


def gradient(name: str, dy, x, *bias):
    """The oracle's gradient at the forward input x."""
    takes_output = name in ("SigmoidGrad", "TanhGrad", "LeakyReluGrad")
    argument = FORWARD[name](x) if takes_output else x
    attributes = {"alpha": ALPHA[name]} if name in ALPHA else {}
    return computed(get_op(name)(**attributes), dy, argument, *bias)


def inputs(rng, *shape: int):
    """dY and X, X not beside 0, where Relu has no derivative."""
    x = 3 * rng.standard_normal(shape)
    return rng.standard_normal(shape), x + np.copysign(0.01, x)


@gradients
def test_gradient_is_the_finite_difference(rng, name) -> None:
    dy, x = inputs(rng, 1000)
    h = 1e-5
    slope = (FORWARD[name](x + h) - FORWARD[name](x - h)) / (2 * h)
    assert np.abs(gradient(name, dy, x) - dy * slope).max() < 1e-9


@gradients
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=dtype_name)
def test_gradient_is_jax_vector_jacobian_product(rng, name, dtype) -> None:
    """JAX computes in float64: in float32 its own error at the tails is as large as the bound."""
    dy, x = (array.astype(dtype) for array in inputs(rng, 1000))
    (expected,) = vjp(JAX[name], (x.astype(FLOAT64),), dy.astype(FLOAT64))
    assert_matches(gradient(name, dy, x), expected.astype(dtype))


@pytest.mark.parametrize("name", BIASED)
def test_bias_is_added_to_every_row(rng, name) -> None:
    dy, x = inputs(rng, 4, 3, 7)
    bias = rng.standard_normal(7)
    expected = gradient(BIASED[name], dy, x + bias)
    assert_matches(get_op(name)()(dy, x, bias), expected)


@pytest.mark.parametrize("name", FORWARD_OPS)
def test_forward_is_the_definition(rng, name) -> None:
    _, x = inputs(rng, 5, 200)
    attributes = {"alpha": -1.3} if name == "QuickGelu" else {}
    assert_matches(get_op(name)(**attributes)(x), FORWARD[FORWARD_OPS[name]](x))


def test_forward_with_bias_is_forward_of_the_sum(rng) -> None:
    _, x = inputs(rng, 5, 200)
    b = rng.standard_normal(200)
    assert_matches(get_op("BiasGelu")()(x, b), FORWARD["GeluGrad"](x + b))
    assert_matches(get_op("FastGelu")()(x, b), FORWARD["FastGeluGrad"](x + b))


GATED = {
    "SwiGlu": lambda a, b: jax.nn.silu(a) * b,
    "FastGeGlu": lambda a, b: jax.nn.gelu(a, approximate=True) * b,
}


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=dtype_name)
def test_gated_activations_are_jax_products(rng, name, dtype) -> None:
    """Values, and both gradients by automatic differentiation."""
    dy, a, b = (2 * rng.standard_normal((3, 700))).astype(dtype)
    inputs = (a.astype(FLOAT64), b.astype(FLOAT64))
    assert_matches(get_op(name)()(a, b), np.asarray(GATED[name](*inputs)).astype(dtype))
    expected = vjp(GATED[name], inputs, dy.astype(FLOAT64))
    for actual, wanted in zip(get_op(f"{name}Grad")()(dy, a, b), expected, strict=True):
        assert_matches(actual, wanted.astype(dtype))


def test_gated_halves_of_rows_are_jax_products(rng) -> None:
    x, dy = 2 * rng.standard_normal((3, 4, 14)), rng.standard_normal((3, 4, 7))

    def product(x):
        return jax.nn.silu(x[..., :7]) * x[..., 7:]

    assert_matches(get_op("SwiGluHalves")()(x), np.asarray(product(x)))
    assert_matches(get_op("SwiGluHalvesGrad")()(dy, x), vjp(product, (x,), dy)[0])


@pytest.mark.parametrize("name", GATED)
def test_gated_activations_at_the_limits(name) -> None:
    """The gate is 0 at minus infinity, and its slope; NaN where an infinity meets that."""
    a, b = np.array([-INF, -INF, INF, INF, NAN, 1.0]), np.array([2.0, INF, 2.0, -2.0, 2.0, NAN])
    assert_matches(get_op(name)()(a, b), np.array([0, NAN, INF, -INF, NAN, NAN]))
    da, db = get_op(f"{name}Grad")()(np.ones(6), a, b)
    assert_matches(da, np.array([0, NAN, 2, -2, NAN, NAN]))
    assert_matches(db[:4], np.array([0, 0, INF, INF]))


# ---- values worked by hand or recorded in upstream's tests; limits -------------------------------

HAND = [-1, 0, 1, 100, -100, 1000, -1000]
HAND_VALUES = {
    "ReluGrad": [0, 0, 1, 1, 0, 1, 0],
    "LeakyReluGrad": [0.5, 0.5, 1, 1, 0.5, 1, 0.5],
    "SigmoidGrad": [-2, 0, 0, -9900, -10100, -999000, -1001000],
    "TanhGrad": [0, 1, 0, -9999, -9999, -999999, -999999],
    "GeluGrad": [-0.0833155, 0.5, 1.0833155, 1, 0, 1, 0],
    "FastGeluGrad": [-0.0829641, 0.5, 1.0829641, 1, 0, 1, 0],
    "QuickGeluGrad": [-0.0677796, 0.5, 1.0677796, 1, 0, 1, 0],
}


@pytest.mark.parametrize("name", HAND_VALUES)
def test_hand_worked_values(name) -> None:
    values = np.array(HAND, FLOAT32)
    attributes = {"alpha": 0.5} if name == "LeakyReluGrad" else {}
    result = get_op(name)(**attributes)(np.ones_like(values), values)
    np.testing.assert_allclose(result, HAND_VALUES[name], atol=1e-6)


def exact_slope(name: str, x: float) -> Decimal:
    """s + w s (1 - s), s = 1 / (1 + exp(-v)), in 50 digits."""
    with localcontext(prec=50):
        z, c = Decimal(x), 2 * (2 / PI).sqrt()
        fast = c * (z + Decimal("0.044715") * z**3), c * (z + 3 * Decimal("0.044715") * z**3)
        v, w = fast if name == "FastGeluGrad" else (Decimal(float(FLOAT32.type(1.702))) * z,) * 2
        s = 1 / (1 + (-v).exp())
        return s + w * s * (1 - s)


@pytest.mark.parametrize(
    ("name", "x"), [("FastGeluGrad", -10.0625), ("FastGeluGrad", -9.5), ("QuickGeluGrad", -52.25)]
)
def test_slopes_that_nearly_vanish_have_all_their_digits(name, x) -> None:
    """A huge dY shows them; 1 + exp(-v) is infinite in float32 there."""
    dx = get_op(name)()(np.array([1e38], FLOAT32), np.array([x], FLOAT32))
    np.testing.assert_allclose(dx, float(exact_slope(name, x)) * 1e38, rtol=5e-7)


@pytest.mark.parametrize(
    ("dtype", "most", "tolerance"), [(FLOAT64, 37.5, 4e-15), (FLOAT32, 12.9, 6.1e-8)]
)
def test_gelu_is_accurate_far_into_its_tail(rng, dtype, most, tolerance) -> None:
    """Relative to the terms: to the last digits, where values fall to 1e-300 and 1e-37."""
    x = np.concatenate([rng.uniform(-most, most, 800), rng.standard_normal(400)]).astype(dtype)
    values = get_op("Gelu")()(x).tolist()
    slopes = get_op("GeluGrad")()(np.ones_like(x), x).tolist()
    with mpmath.workdps(40):
        for number, value, slope in zip(map(mpmath.mpf, x.tolist()), values, slopes, strict=True):
            cdf, term = mpmath.ncdf(number), number * mpmath.npdf(number)
            assert abs(value / (number * cdf) - 1) < tolerance, number
            assert abs(slope - cdf - term) < tolerance * (cdf + abs(term)), number


SMOOTH = ("GeluGrad", "FastGeluGrad", "QuickGeluGrad", *BIASED)


@floats
@pytest.mark.parametrize("name", SMOOTH)
def test_infinities_give_limits_and_nan_stays(name, dtype) -> None:
    bias = (np.zeros(5, dtype),) if name in BIASED else ()
    x = np.array([INF, -INF, NAN, 3e38, -3e38], FLOAT64)
    with np.errstate(over="ignore"):
        x = x.astype(dtype)
    dy = np.full(5, 2.5, dtype)
    result = get_op(name)()(dy, x, *bias).astype(FLOAT64)
    np.testing.assert_array_equal(result, [2.5, 0, NAN, 2.5, 0])


@floats
@pytest.mark.parametrize("name", FORWARD_OPS)
def test_forward_limits(name, dtype) -> None:
    result = get_op(name)()(np.array([INF, -INF, NAN, -0.0], dtype)).astype(FLOAT64)
    np.testing.assert_array_equal(result, [INF, 0, NAN, 0])


def test_negative_alpha_turns_the_limits_round() -> None:
    x = np.array([INF, -INF], FLOAT32)
    assert get_op("QuickGeluGrad")(alpha=-1.702)(np.ones(2, FLOAT32), x).tolist() == [0, 1]
    assert get_op("QuickGelu")(alpha=-1.702)(x).tolist() == [0, -INF]


def test_selects_take_the_branch_of_not_greater_for_nan() -> None:
    dy, x = np.array([2.0, 3.0], FLOAT32), np.array([NAN, NAN], FLOAT32)
    assert get_op("ReluGrad")()(dy, x).tolist() == [0, 0]
    assert get_op("LeakyReluGrad")(alpha=0.5)(dy, x).tolist() == [1, 1.5]


# ---- refused calls -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if len(op.inputs) > 1])
def test_other_shapes_are_refused(name) -> None:
    op = OPS[name]
    arrays = [np.zeros((2, 3), FLOAT32) for _ in op.inputs]
    arrays[-1] = np.zeros(2, FLOAT32)
    with pytest.raises(ArgumentError, match=f"^{name}: {op.inputs[-1].name}: expected .*3.*2"):
        op()(*arrays)


def test_a_row_needs_a_dimension_to_repeat_along() -> None:
    with pytest.raises(ArgumentError, match="BiasGelu: B: expected rank 1"):
        get_op("BiasGelu")()(np.zeros((), FLOAT32), np.zeros(1, FLOAT32))


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.row])
def test_a_row_has_a_dimension_of_its_own(anywhere, name) -> None:
    op = get_op(name)()
    scalars = [anywhere.place(np.ones((), FLOAT32)) for _ in op.inputs]
    with pytest.raises(
        ArgumentError, match=rf"{name}: {op.row}: expected rank 1 .* got shape \(\)"
    ):
        op(*scalars)


def test_alpha_is_a_number() -> None:
    with pytest.raises(ArgumentError, match="QuickGelu: alpha: expected a number, got '1'"):
        get_op("QuickGelu")(alpha="1")
