# SPDX-License-Identifier: MIT
"""Gradients of elementwise operators: finite differences, and PyTorch at corners, in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from onnx import TensorProto, helper

import cupy_training_ops as cto

from .one_operator import (
    NARROW,
    by_torch,
    check_gradients,
    check_narrow,
    gradients,
    model_of,
    trained_x,
)

torch = pytest.importorskip("torch")
functional = torch.nn.functional
INF, NAN = math.inf, math.nan
MICROSOFT = "com.microsoft"


def off_kinks(x, place=0):
    """Numbers that are no multiples of 0.01, and others than those at another place."""
    return np.round(x, 2) + 0.001 * (place + 2)


# ---- of one array --------------------------------------------------------------------------------

UNIT, ABOVE_1, POSITIVE, REAL = (-0.9, 0.9), (1.1, 3), (0.5, 2), (-2, 2)
UNARY = [
    ("Acos", UNIT, {}),
    ("Acosh", ABOVE_1, {}),
    ("Asin", UNIT, {}),
    ("Asinh", REAL, {}),
    ("Atan", REAL, {}),
    ("Atanh", UNIT, {}),
    ("Cosh", REAL, {}),
    ("Elu", REAL, {}),
    ("Elu", REAL, {"alpha": 0.5}),
    ("Gelu", REAL, {"opset": 20}),
    ("Gelu", REAL, {"opset": 20, "approximate": "tanh"}),
    ("Gelu", REAL, {"domain": MICROSOFT}),
    ("FastGelu", REAL, {"domain": MICROSOFT}),
    ("QuickGelu", REAL, {"domain": MICROSOFT}),
    ("QuickGelu", REAL, {"domain": MICROSOFT, "alpha": 0.75}),
    ("HardSigmoid", REAL, {}),
    ("HardSigmoid", REAL, {"alpha": 0.4, "beta": 0.2}),
    ("HardSwish", (-4, 4), {}),
    ("Identity", REAL, {}),
    ("LeakyRelu", REAL, {}),
    ("LeakyRelu", REAL, {"alpha": 0.25}),
    ("LeakyRelu", REAL, {"alpha": -0.25}),
    ("Log", POSITIVE, {}),
    ("Mish", REAL, {}),
    ("Reciprocal", POSITIVE, {}),
    ("Selu", REAL, {}),
    ("Selu", REAL, {"alpha": 0.5, "gamma": 2.0}),
    ("Shrink", REAL, {"lambd": 0.75, "bias": 0.5}),
    ("Shrink", REAL, {"lambd": -0.75, "bias": 0.5}),
    ("Sinh", REAL, {}),
    ("Softsign", REAL, {}),
    ("Sqrt", POSITIVE, {}),
    ("Swish", REAL, {"opset": 24}),
    ("Swish", REAL, {"opset": 24, "alpha": 0.5}),
    ("Tan", (-1, 1), {}),
    ("ThresholdedRelu", REAL, {}),
    ("ThresholdedRelu", REAL, {"alpha": -0.5}),
]


@pytest.mark.parametrize(("op_type", "bounds", "options"), UNARY)
def test_gradients_of_functions_of_one_array(op_type, bounds, options, rng) -> None:
    check_gradients(op_type, [off_kinks(rng.uniform(*bounds, (3, 4)))], rng, **options)


@pytest.mark.parametrize(
    ("op_type", "function", "options"),
    [
        ("Abs", torch.abs, {}),
        ("Acos", torch.acos, {}),
        ("Asin", torch.asin, {}),
        ("Elu", functional.elu, {}),
        ("HardSigmoid", functional.hardsigmoid, {"alpha": 1 / 6}),
        ("HardSwish", functional.hardswish, {}),
        ("LeakyRelu", functional.leaky_relu, {}),
        ("Log", torch.log, {}),
        ("Reciprocal", torch.reciprocal, {}),
        ("Relu", torch.relu, {}),
        ("Selu", functional.selu, {}),
        ("Shrink", functional.hardshrink, {}),
        ("Softplus", functional.softplus, {}),
        ("Sqrt", torch.sqrt, {}),
        ("ThresholdedRelu", lambda x: functional.threshold(x, 1, 0), {}),
    ],
)
def test_gradients_at_kinks_and_infinity_are_those_of_pytorch(op_type, function, options) -> None:
    x = np.array([-INF, -1000.0, -3, -1, -0.5, 0, 0.5, 1, 3, 1000, INF])
    expected = by_torch(function, x)
    np.testing.assert_allclose(gradients(op_type, [x], **options)[0], expected[0], rtol=1e-6)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_the_gradient_of_celu_is_that_of_pytorch(alpha) -> None:
    x = np.array([-INF, -1000.0, -3, -1, -0.5, 0, 0.5, 1000, INF])  # in float32, as ONNX has it
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=TensorProto.FLOAT),
        helper.make_node("Celu", ["narrow"], ["y"], alpha=alpha),
        helper.make_node("Cast", ["y"], ["wide"], to=TensorProto.DOUBLE),
        helper.make_node("ReduceSum", ["wide"], ["loss"], keepdims=0),
    ]
    expected = by_torch(lambda x: functional.celu(x, alpha), x)[0]
    np.testing.assert_allclose(trained_x(nodes, x).gradients["x"], expected, 1e-6, 1e-30)


@pytest.mark.parametrize("op_type", ["Elu", "HardSwish", "Selu", "Shrink", "Softsign"])
def test_no_gradient_of_0_becomes_nan_far_out(op_type) -> None:
    x = np.array([-1e300, -1000.0, 0, 1000, 1e300])
    np.testing.assert_array_equal(gradients(op_type, [x], dy=0.0)[0], 0)


def test_the_slope_of_hard_swish_is_that_of_pytorch_at_infinity() -> None:
    x = np.array([-INF, -3, 3, INF])
    np.testing.assert_array_equal(gradients("HardSwish", [x])[0], [0, 0, 1, 1])


# ---- of two and more -----------------------------------------------------------------------------

SHAPES = [((2, 3), (2, 3)), ((2, 3), (3,)), ((3, 1), (2, 1, 4)), ((), (2,)), ((1, 3), (2, 3))]


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("op_type", ["Max", "Min", "Mean", "Sum", "Pow", "Mod", "Div"])
def test_gradients_of_functions_of_two_arrays(op_type, shapes, is_dynamic, rng) -> None:
    arrays = [rng.uniform(*bounds, s) for s, bounds in zip(shapes, ((1, 5), (1, 2)), strict=True)]
    options = {"fmod": 1} if op_type == "Mod" else {}
    check_gradients(
        op_type, arrays, rng, is_dynamic=is_dynamic, step=1e-7, tolerance=1e-5, **options
    )


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("op_type", ["Max", "Min", "Mean", "Sum"])
def test_gradients_of_functions_of_any_number_of_arrays(op_type, n, rng) -> None:
    shapes = [(2, 3), (3,), (2, 1), (), (1, 1, 1)][:n]
    arrays = [off_kinks(rng.standard_normal(shape), i) for i, shape in enumerate(shapes)]
    check_gradients(op_type, arrays, rng)


@pytest.mark.parametrize(("op_type", "function"), [("Max", torch.maximum), ("Min", torch.minimum)])
def test_equal_elements_share_a_gradient(op_type, function) -> None:
    a, b = np.array([1.0, 1, 2, INF, -INF]), np.array([1.0, 2, 1, INF, 0])
    actual = gradients(op_type, [a, b], trainable=(0, 1))
    np.testing.assert_array_equal(actual, by_torch(function, a, b))
    three = gradients(op_type, [a, a, a], trainable=(0, 1, 2))
    np.testing.assert_allclose(three, np.full((3, 5), 1 / 3))


def test_a_nan_among_two_leaves_a_gradient_of_0_as_it_is() -> None:
    a, b = np.array([NAN, 1.0]), np.array([1.0, NAN])
    np.testing.assert_array_equal(gradients("Max", [a, b], dy=0.0, trainable=(0, 1)), 0)


@pytest.mark.parametrize("b", [-2.5, -1.0, -0.5, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, -1, 1, 2, 3, 4])
def test_gradients_of_powers_with_a_known_exponent(b, rng) -> None:
    exponent = np.array(b)
    a = rng.uniform(0.5, 2, (2, 3)) * (
        rng.choice([-1, 1], (2, 3)) if exponent == int(exponent) else 1
    )
    check_gradients("Pow", [a, exponent], rng, trainable=[0])


@pytest.mark.parametrize("b", [-1.0, 0.5, 1, 2, 3, 0.25, -0.5])
def test_powers_with_a_known_exponent_at_corners(b) -> None:
    a = np.array([0.0, 1, INF, 2])
    expected = by_torch(lambda x: x**b, a)[0]
    np.testing.assert_allclose(gradients("Pow", [a, np.array(b)])[0], expected)


def test_powers_with_a_variable_exponent_at_corners() -> None:
    a, b = (x.ravel() for x in np.meshgrid([0.0, -2, 1, 3], [0.0, 1, 2, -1, 0.5]))
    expected = by_torch(torch.pow, a, b)
    np.testing.assert_allclose(gradients("Pow", [a, b], trainable=(0, 1)), expected)


def test_an_exponent_of_integers_has_no_gradient(rng) -> None:
    base = rng.uniform(0.5, 2, (2, 3))
    check_gradients("Pow", [base, np.array([0, 1, 3])], rng)


def test_a_trained_exponent_is_read_in_each_step() -> None:
    model = model_of("Pow", [np.array([3.0]), np.array([2.0])])
    session = cto.onnx.TrainingSession.from_model(model, loss="loss", optimizer="SGD")
    session.parameters["in1"][...] = 3
    session.accumulate(np.ones(1))
    np.testing.assert_allclose(session.gradients["in0"], [27])


@pytest.mark.parametrize("slope", [(2, 3), (3,), (1,), (2, 1)])
def test_gradients_of_prelu(slope, rng) -> None:
    inputs = [off_kinks(rng.standard_normal((2, 3))), rng.standard_normal(slope)]
    check_gradients("PRelu", inputs, rng)


def test_the_slope_of_prelu_at_0_and_far_out_is_that_of_pytorch() -> None:
    x, slope = np.array([-1e308, -1, 0, 1, INF]), np.array([0.25])
    expected = by_torch(lambda x, s: functional.prelu(x[None, None], s), x, slope)
    actual = gradients("PRelu", [x, slope], trainable=(0, 1))
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


BOUNDS = [(-0.5, 0.5), (None, 0.5), (-0.5, None), (None, None), (0.5, -0.5)]


@pytest.mark.parametrize("are_trained", [False, True])
@pytest.mark.parametrize(("low", "high"), BOUNDS)
def test_gradients_of_clip(low, high, are_trained, rng) -> None:
    bounds = [None if each is None else np.array(each) for each in (low, high)]
    trained = [i for i, each in enumerate(bounds, 1) if each is not None and are_trained]
    x = off_kinks(rng.uniform(-2, 2, (3, 4)))
    if low is not None and high is not None and low > high and not are_trained:
        np.testing.assert_array_equal(gradients("Clip", [np.array([-1, -0.5, 0, 0.5]), *bounds]), 0)
    else:
        check_gradients("Clip", [x, *bounds], rng, trainable=[0, *trained])


def test_the_slope_of_clip_at_its_bounds_is_that_of_pytorch() -> None:
    x = np.array([-INF, -1, -0.5, 0, 0.5, 1, INF, NAN])
    expected = by_torch(lambda x: x.clamp(-0.5, 0.5), x)[0]
    actual = gradients("Clip", [x, np.array(-0.5), np.array(0.5)])[0]
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize(
    "shapes",
    [((2, 3), (2, 3), (2, 3)), ((2, 1), (3,), ()), ((2, 3), (1,), (1, 2, 1)), ((), (2,), ())],
)
def test_gradients_of_where(shapes, is_dynamic, rng) -> None:
    condition, *arrays = (rng.standard_normal(shape) for shape in shapes)
    check_gradients("Where", [condition > 0, *arrays], rng, is_dynamic=is_dynamic)


def test_where_keeps_the_infinity_that_is_not_chosen_out_of_the_gradient() -> None:
    condition, x = np.array([True, False]), np.array([1.0, 2])
    actual = gradients("Where", [condition, x, np.array([INF, INF])], dy=2.0, trainable=(1, 2))
    np.testing.assert_array_equal(actual, [[2, 0], [0, 2]])


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize(
    ("x", "shape"), [((3, 1), (2, 1, 4)), ((2, 3), (3,)), ((), (2, 2)), ((1,), (0,))]
)
def test_gradients_of_expand(x, shape, is_dynamic, rng) -> None:
    inputs = [rng.standard_normal(x), np.array(shape, np.int64)]
    check_gradients("Expand", inputs, rng, is_dynamic=is_dynamic)


@pytest.mark.parametrize("op_type", ["BiasGelu", "FastGelu"])
def test_gradients_of_gelu_with_a_bias(op_type, rng) -> None:
    inputs = [rng.standard_normal((2, 3, 4)), rng.standard_normal(4)]
    check_gradients(op_type, inputs, rng, domain=MICROSOFT)


# ---- types ---------------------------------------------------------------------------------------


def test_a_cast_gives_the_gradient_in_the_type_of_its_input(rng) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.DOUBLE),
        helper.make_node("Mul", ["wide", "weights"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0),
    ]
    weights = rng.standard_normal(4)
    session = trained_x(nodes, np.float32(rng.standard_normal(4)), weights=weights)
    assert session.gradients["x"].dtype == np.float32
    np.testing.assert_array_equal(session.gradients["x"], np.float32(weights))


def test_nothing_moves_behind_a_cast_to_integers(rng) -> None:
    """y = x int(x): dx = int(x)."""
    nodes = [
        helper.make_node("Cast", ["x"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Cast", ["whole"], ["back"], to=TensorProto.DOUBLE),
        helper.make_node("Mul", ["x", "back"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0),
    ]
    x = rng.uniform(-4, 4, 5)
    session = trained_x(nodes, x)
    np.testing.assert_array_equal(session.gradients["x"], np.trunc(x))


def test_cast_like_gives_the_gradient_in_the_type_of_its_input(rng) -> None:
    nodes = [
        helper.make_node("CastLike", ["x", "like"], ["wide"]),
        helper.make_node("Mul", ["wide", "wide"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0),
    ]
    x = np.float32(rng.standard_normal(5))
    session = trained_x(nodes, x, like=np.zeros(1))
    np.testing.assert_allclose(session.gradients["x"], 2 * x, rtol=1e-6)


# ---- half types ----------------------------------------------------------------------------------

OWN = [item for item in UNARY if item[2].keys().isdisjoint({"opset", "domain"})]


@pytest.mark.parametrize("to", NARROW)
@pytest.mark.parametrize(("op_type", "bounds", "options"), OWN)
def test_gradients_of_narrow_types_are_near_those_in_float64(
    op_type, bounds, options, to, rng
) -> None:
    x = np.float64(np.float16(rng.uniform(*bounds, 50)))
    check_narrow(op_type, x[np.abs(x) > 0.01], [], to, **options)


@pytest.mark.parametrize("to", NARROW)
@pytest.mark.parametrize(
    "op_type", ["Clip", "Div", "Max", "Mean", "Min", "Mod", "Mul", "PRelu", "Pow"]
)
def test_gradients_of_two_narrow_arrays_are_near_those_in_float64(op_type, to, rng) -> None:
    x, b = (np.float64(np.float16(rng.uniform(*bounds, 20))) for bounds in ((0.5, 2), (0.4, 1)))
    others = [np.array(0.75), np.array(1.5)] if op_type == "Clip" else [b]
    check_narrow(op_type, x, others, to, **({"fmod": 1} if op_type == "Mod" else {}))


@pytest.mark.parametrize("to", NARROW)
@pytest.mark.parametrize("b", [-1.0, 0.5, 2.0, 2.5])
def test_gradients_of_narrow_powers_are_near_those_in_float64(b, to, rng) -> None:
    check_narrow("Pow", np.float64(np.float16(rng.uniform(0.5, 2, 20))), [np.array(b)], to)
