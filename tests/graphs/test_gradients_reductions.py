# SPDX-License-Identifier: MIT
"""Gradients of reductions: finite differences, and PyTorch at corners, in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from onnx import TensorProto, helper

from cupy_training_ops.dtypes import BFLOAT16, FLOAT16, dtype_name

from .one_operator import NARROW, by_torch, check_gradients, check_narrow, gradients, trained_x

torch = pytest.importorskip("torch")
INF, NAN = math.inf, math.nan

REDUCTIONS = [
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
]
SIGNED = {"ReduceL1", "ReduceProd", "ReduceSum", "ReduceSumSquare", "ReduceMax", "ReduceLogSumExp"}


def numbers(op_type, rng, shape=(2, 3, 4)):
    """Numbers without a tie or 0, of both signs where that makes no NaN."""
    x = rng.permutation(math.prod(shape)).reshape(shape) / 10 + 0.3
    return x * rng.choice([-1, 1], shape) if op_type in SIGNED else x


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [None, (0,), (-1,), (0, -2), (2, 0, 1)])
@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_gradients_of_reductions(op_type, axes, keepdims, is_dynamic, rng) -> None:
    """Axes as an input, and before opset 18 as an attribute, but for those of ReduceSum."""
    x = numbers(op_type, rng)
    options = {"keepdims": keepdims, "is_dynamic": is_dynamic, "tolerance": 1e-5}
    inputs = [x] if axes is None else [x, np.array(axes)]
    check_gradients(op_type, inputs, rng, opset=18, **options)
    if axes is not None and op_type != "ReduceSum" and keepdims != is_dynamic:
        check_gradients(op_type, [x], rng, opset=17, axes=axes, **options)


@pytest.mark.parametrize("axes", [None, ()])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_gradients_of_reductions_over_no_axes(op_type, keepdims, axes, rng) -> None:
    inputs = [numbers(op_type, rng, (2, 3))]
    inputs += [] if axes is None else [np.array(axes, np.int64)]
    if op_type == "ReduceLogSum":
        inputs[0] = np.abs(inputs[0])
    check_gradients(op_type, inputs, rng, keepdims=keepdims, noop_with_empty_axes=1)


@pytest.mark.parametrize("op_type", [name for name in REDUCTIONS if name != "ReduceSum"])
def test_gradients_of_reductions_of_all_by_old_opsets(op_type, rng) -> None:
    x = numbers(op_type, rng, (2, 3))
    for opset, keepdims in ((11, 0), (13, 1), (17, 0)):
        check_gradients(op_type, [x], rng, opset=opset, keepdims=keepdims, tolerance=1e-5)


@pytest.mark.parametrize("keepdims", [0, 1])
def test_axes_may_be_computed(keepdims, rng) -> None:
    """The largest element's gradient alone is not 0, with axes that no constant says."""
    x = rng.standard_normal((3, 4))
    nodes = [
        helper.make_node("Neg", ["one"], ["axes"]),
        helper.make_node("ReduceMax", ["x", "axes"], ["y"], keepdims=keepdims),
        helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0),
    ]
    session = trained_x(nodes, x, one=np.array([1]))
    np.testing.assert_array_equal(session.gradients["x"], x == x.max(axis=1, keepdims=True))


@pytest.mark.parametrize("axes", [(0,), (0, 1)])
@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_the_gradient_of_one_number_or_of_equal_ones(op_type, axes, rng) -> None:
    """y = f(1), f(2 equal ones): nothing is lost to a tie along the axis."""
    if op_type in ("ReduceMax", "ReduceMin"):
        (dx,) = gradients(op_type, [np.full((2, 3), 2.0), np.array(axes)], keepdims=0)
        np.testing.assert_allclose(dx.sum(), 3 if axes == (0,) else 1)
        np.testing.assert_allclose(dx, dx[0, 0])
    else:
        check_gradients(op_type, [np.full((1, 1), 2.0), np.array(axes)], rng)


# ---- corners -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op_type", "function"),
    [
        ("ReduceL1", lambda x: x.abs().sum(1)),
        ("ReduceL2", lambda x: x.norm(2, 1)),
        ("ReduceMax", lambda x: x.amax(1)),
        ("ReduceMin", lambda x: x.amin(1)),
        ("ReduceProd", lambda x: x.prod(1)),
        ("ReduceSumSquare", lambda x: (x * x).sum(1)),
        ("ReduceLogSum", lambda x: x.sum(1).log()),
        ("ReduceLogSumExp", lambda x: x.logsumexp(1)),
    ],
)
def test_gradients_at_ties_and_zeros_are_those_of_pytorch(op_type, function) -> None:
    x = np.array([[0.0, 0, 0], [0, 2, 3], [0, 0, 3], [2, 2, -1], [-4, -4, -4], [1000, 0, -1000]])
    if op_type == "ReduceLogSum":
        x = x[1:3]
    expected = by_torch(function, x)[0]
    for keepdims in (0, 1):
        actual = gradients(op_type, [x, np.array([1])], keepdims=keepdims)[0]
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_far_out_elements_of_log_sum_exp_have_the_gradient_of_pytorch() -> None:
    x = np.array([[-INF, 1.0], [1000, 0], [-1000, -1001], [-INF, -1000]])
    expected = by_torch(lambda x: x.logsumexp(1), x)[0]
    actual = gradients("ReduceLogSumExp", [x, np.array([1])], keepdims=0)[0]
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.parametrize("op_type", ["ReduceL2", "ReduceMax", "ReduceProd"])
def test_no_gradient_of_0_becomes_nan_at_0(op_type) -> None:
    actual = gradients(op_type, [np.zeros((2, 3)), np.array([1])], dy=0.0)
    np.testing.assert_array_equal(actual[0], 0)


@pytest.mark.parametrize(
    ("op_type", "shape"),
    [
        ("ReduceMean", (0, 3)),
        ("ReduceSum", (0, 3)),
        ("ReduceSum", (2, 0)),
        ("ReduceProd", (2, 0)),
        ("ReduceL2", (2, 0)),
    ],
)
def test_gradients_of_no_elements(op_type, shape) -> None:
    """w has elements, of which Expand makes none."""
    nodes = [
        helper.make_node("Expand", ["x", "shape"], ["none"]),
        helper.make_node(op_type, ["none", "axes"], ["y"], keepdims=0),
        helper.make_node("ReduceSum", ["y"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["x"], ["all"], keepdims=0),
        helper.make_node("Add", ["all", "sum"], ["loss"]),
    ]
    constants = {"shape": np.array(shape), "axes": np.array([1])}
    session = trained_x(nodes, np.ones((1, 1)), **constants)
    np.testing.assert_array_equal(session.gradients["x"], [[1]])


@pytest.mark.parametrize(
    ("op_type", "number", "n", "expected"),
    [
        ("ReduceMean", 0, 70000, 1 / 70000),
        ("ReduceMax", 0, 70000, 1 / 70000),
        ("ReduceLogSum", 30, 4000, 1 / 120000),
    ],
)
def test_what_float16_cannot_count_or_sum_has_a_gradient(op_type, number, n, expected) -> None:
    """loss = 4096 y, whose dx is not 0."""
    nodes = [
        helper.make_node(op_type, ["x"], ["y"], keepdims=0),
        helper.make_node("Cast", ["y"], ["wide"], to=TensorProto.DOUBLE),
        helper.make_node("Mul", ["wide", "scale"], ["loss"]),
    ]
    session = trained_x(nodes, np.full(n, number, np.float16), scale=np.array(4096.0))
    np.testing.assert_allclose(session.gradients["x"], 4096 * expected, rtol=2e-3)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=dtype_name)
def test_shares_of_large_numbers_of_half_types_are_not_those_of_a_rounded_result(dtype) -> None:
    """log of the sum is 900.69, rounded to 900.5 or 900: e^(900 - 900.5) would be 0.61, not 0.5."""
    nodes = [
        helper.make_node("ReduceLogSumExp", ["x"], ["y"], keepdims=0),
        helper.make_node("Cast", ["y"], ["loss"], to=TensorProto.DOUBLE),
    ]
    session = trained_x(nodes, np.full(2, 900, dtype))
    np.testing.assert_array_equal(session.gradients["x"].astype(np.float64), 0.5)


# ---- along an axis -------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_gradients_of_cumulative_sums(axis, exclusive, reverse, rng) -> None:
    inputs = [rng.standard_normal((3, 4)), np.array(axis)]
    check_gradients("CumSum", inputs, rng, exclusive=exclusive, reverse=reverse)


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_gradients_of_cumulative_products(axis, exclusive, reverse, rng) -> None:
    """With no 0, one, and two of them in a row."""
    options = {"opset": 26, "exclusive": exclusive, "reverse": reverse}
    x = rng.standard_normal((4, 5))
    check_gradients("CumProd", [x, np.array(axis)], rng, **options)
    x[1, 2] = x[3, 0] = x[3, 3] = x[0, 3] = 0
    check_gradients("CumProd", [x, np.array(axis)], rng, **options)


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
def test_nothing_moves_behind_a_place(op_type, rng) -> None:
    """loss = sum of x, plus a place that is no function of x's small changes."""
    nodes = [
        helper.make_node(op_type, ["x"], ["place"], axis=0, keepdims=0),
        helper.make_node("Cast", ["place"], ["number"], to=TensorProto.DOUBLE),
        helper.make_node("Mul", ["x", "number"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0),
    ]
    x = rng.standard_normal(5)
    place = x.argmax() if op_type == "ArgMax" else x.argmin()
    np.testing.assert_array_equal(trained_x(nodes, x).gradients["x"], np.full(5, place))


@pytest.mark.parametrize("to", NARROW)
@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_gradients_of_narrow_reductions_are_near_those_in_float64(op_type, to, rng) -> None:
    x = np.float64(np.float16(rng.uniform(0.5, 1.5, (3, 4))))
    check_narrow(op_type, x, [np.array([1])], to, keepdims=0)
