# SPDX-License-Identifier: MIT
"""Batch norm with a residual and relu: against JAX in float64, in place, masks, layouts, plans."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivatives import vjp

from cupy_training_ops import ArgumentError, get_op
from cupy_training_ops.declare.schema import Spec
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOAT64
from cupy_training_ops.families.batch_norm.samples import NAMES_WITH_RELU, ROWS, inputs
from cupy_training_ops.plan import Device
from cupy_training_ops.testing.compare import assert_matches

jax.config.update("jax_enable_x64", True)

DOUBLE = (FLOAT64,) * 3
EPSILON = 1e-3
FORWARD = get_op("BatchNormRelu")(epsilon=EPSILON)
GRADIENT = get_op("BatchNormReluGrad")()
H200 = Device(132, (9, 0), 227 * 1024)
SHAPES = ((7,), (5, 2), (4, 3), (2, 33, 5), (3, 2, 31), (2, 3, 2, 2, 1, 3))
# For each way of the kernels: registers, shared memory, parts by vectors and elements, columns.
WAYS = ((3, 5, 20), (3, 528, 7, 7), (3, 268, 7, 7), (2, 2, 9216), (2, 3, 2051), (600, 34))

names = pytest.mark.parametrize("name", NAMES_WITH_RELU)


def rectified(x, scale, bias, residual):
    """The formula, for JAX."""
    x3 = x.reshape((1, 1, -1) if x.ndim == 1 else (*x.shape[:2], -1))
    mean = x3.mean((0, 2), keepdims=True)
    var = ((x3 - mean) ** 2).mean((0, 2), keepdims=True)
    y = (x3 - mean) / jnp.sqrt(var + EPSILON) * scale[:, None] + bias[:, None]
    return jax.nn.relu(y.reshape(x.shape) + residual)


@pytest.mark.parametrize("is_alone", [False, True], ids=["residual", "alone"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward_and_gradient_are_jax(rng, shape, is_alone) -> None:
    x, scale, bias, mean, var, residual = inputs(rng, "BatchNormRelu", shape, DOUBLE)
    if is_alone:
        residual = np.zeros_like(x)
    y, *saved = FORWARD(x, scale, bias, mean, var, None if is_alone else residual)
    assert_matches(y, np.asarray(rectified(x, scale, bias, residual)), 1e-10)
    dy = rng.standard_normal(shape)
    expected = vjp(rectified, [x, scale, bias, residual], dy)
    for result, gradient in zip(GRADIENT(dy, x, y, scale, *saved), expected, strict=True):
        assert_matches(result, gradient, 1e-9)


@pytest.mark.parametrize("momentum", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("shape", WAYS, ids=str)
def test_running_statistics_are_those_of_the_plain_operator(anywhere, rng, shape, momentum) -> None:
    arrays = inputs(rng, "BatchNormRelu", shape)
    ours = [anywhere.place(array) for array in arrays]
    plain = [array.copy() for array in arrays[:-1]]
    _, *saved = get_op("BatchNormRelu")(momentum=momentum)(*ours)
    _, mean, var, *expected = get_op("BatchNormInternal")(momentum=momentum)(*plain)
    results = [anywhere.host(array) for array in (*ours[3:5], *saved)]
    for result, other in zip(results, (mean, var, *expected), strict=True):
        assert_matches(result, other)


@pytest.mark.parametrize("shape", WAYS, ids=str)
def test_a_residual_is_added_before_relu_and_rounded_once(anywhere, rng, shape) -> None:
    row = (FLOAT16, FLOAT32, FLOAT32)
    x, scale, bias, mean, var, residual = inputs(rng, "BatchNormRelu", shape, row)
    wide = [a.astype(FLOAT64) for a in (x, scale, bias, residual)]
    arrays = [anywhere.place(a) for a in (x, scale, bias, mean, var, residual)]
    y, *_ = FORWARD(*arrays)
    exact = np.asarray(rectified(*wide))
    spacing = np.spacing(np.maximum(exact, 1).astype(FLOAT16)).astype(FLOAT64)
    off = np.abs(anywhere.host(y).astype(FLOAT64) - exact)
    assert (off <= 0.5 * spacing + 2e-6 * (1 + np.abs(wide[3]))).all()


@pytest.mark.parametrize("place", [0, 5], ids=["X", "residual"])
@pytest.mark.parametrize("shape", WAYS, ids=str)
def test_the_result_may_lie_over_an_input(anywhere, rng, shape, place) -> None:
    arrays = inputs(rng, "BatchNormRelu", shape)
    expected = FORWARD.cpu_function()(*[a.copy() for a in arrays], **FORWARD.attribute_values)[0]
    placed = [anywhere.place(array) for array in arrays]
    assert FORWARD(*placed, out=(placed[place], None, None))[0] is placed[place]
    assert_matches(anywhere.host(placed[place]), expected)


@pytest.mark.parametrize("places", [(0, 1), (1, 0), (2, 0), (0, 2)], ids=str)
@pytest.mark.parametrize("shape", WAYS, ids=str)
def test_gradients_may_lie_over_inputs(anywhere, rng, shape, places) -> None:
    arrays = inputs(rng, "BatchNormReluGrad", shape)
    expected = GRADIENT.cpu_function()(*arrays)
    placed = [anywhere.place(array) for array in arrays]
    of_x, of_residual = (placed[place] for place in places)
    results = GRADIENT(*placed, out=(of_x, None, None, of_residual))
    assert_matches(anywhere.host(results[0]), expected[0])
    assert (anywhere.host(results[3]) == expected[3]).all()


@pytest.mark.parametrize("shape", WAYS, ids=str)
def test_the_mask_is_the_sign_of_y(anywhere, rng, shape) -> None:
    """NaN lets a gradient pass; behind 0 neither NaN nor infinity of dY is seen."""
    dy, x, y, *others = inputs(rng, "BatchNormReluGrad", shape)
    y[:] = np.abs(y) + 1
    y[0, 0], y[-1, 1] = 0, -1
    dy[0, 0], dy[-1, 1] = np.nan, -np.inf
    passing = -1, 0, *[-1] * (len(shape) - 2)
    y[passing] = np.nan
    placed = [anywhere.place(array) for array in (dy, x, y, *others)]
    of_x, *sums, of_residual = map(anywhere.host, GRADIENT(*placed))
    assert all(np.isfinite(array).all() for array in (of_x, *sums))
    assert (of_residual == np.where(y <= 0, 0, dy)).all()
    assert of_residual[passing] == dy[passing] != 0


@pytest.mark.parametrize("shape", [(3, 6, 20), (9, 6), (600, 34), (3, 528, 7, 7)], ids=str)
def test_nan_of_x_and_of_the_residual_stay(anywhere, rng, shape) -> None:
    x, *others, residual = inputs(rng, "BatchNormRelu", shape)
    x[0, 1], residual[-1, 2] = np.nan, np.nan
    residual[0, 3], residual[-1, 3] = np.inf, -np.inf
    arrays = [anywhere.place(array) for array in (x, *others, residual)]
    y = anywhere.host(FORWARD(*arrays)[0])
    assert np.isnan(y[:, 1]).all()
    assert np.isnan(y[-1, 2]).all()
    assert (y[0, 3] == np.inf).all()
    assert (y[-1, 3] == 0).all()
    assert np.isfinite(y[:, 4:]).all()


@names
@pytest.mark.parametrize("shape", [(3, 5, 6, 7), (4, 16, 5, 5), (2, 8, 33, 20)], ids=str)
def test_channels_may_be_last_in_memory(anywhere, rng, name, shape) -> None:
    op, arrays = get_op(name)(), inputs(rng, name, shape)
    expected = op.cpu_function()(*[a.copy() for a in arrays], **op.attribute_values)

    def last(array):
        return np.moveaxis(np.moveaxis(array, 1, -1).copy(), -1, 1) if array.ndim > 1 else array

    placed = [
        np.moveaxis(anywhere.place(np.moveaxis(a, 1, -1).copy()), -1, 1)
        if anywhere.name == "cpu" and a.ndim > 1
        else anywhere.place(last(a))
        for a in arrays
    ]
    for result, other in zip(op(*placed), expected, strict=True):
        assert_matches(anywhere.host(result), other)


def specs_of(name: str, shape, t=FLOAT32, aligned=True):
    """Specs of an operator's inputs and outputs."""
    row = next(row for row in ROWS if row[0] == t)
    kinds = dict(zip(("T", "T1", "T2"), row, strict=True))
    op = get_op(name)()
    taken = [
        Spec(shape, t, aligned) if item.type == "T" else Spec(shape[1:2], kinds[item.type])
        for item in op.inputs
    ]
    return op, taken, list(op.infer(*taken))


@pytest.mark.parametrize(
    ("name", "shape", "t", "expected"),
    [
        ("BatchNormRelu", (64, 256, 56, 56), FLOAT32, "channel_parts"),
        ("BatchNormRelu", (256, 512, 16, 8), FLOAT16, "staged_channels"),
        ("BatchNormRelu", (64, 512, 7, 7), FLOAT16, "narrow_staged_channels"),
        ("BatchNormRelu", (65_536, 1024), FLOAT16, "column_rings"),
        ("BatchNormRelu", (65_536, 1024), FLOAT32, "column_parts"),
        ("BatchNormReluGrad", (64, 256, 56, 56), FLOAT16, "gradient_of_channel_parts"),
        ("BatchNormReluGrad", (8, 2048, 8, 8), FLOAT32, "gradient_of_channels"),
        ("BatchNormReluGrad", (256, 512, 16, 8), FLOAT16, "gradient_of_staged_channels"),
        ("BatchNormReluGrad", (65_536, 1024), FLOAT16, "gradient_of_column_rings"),
        ("BatchNormReluGrad", (64, 511, 3, 3), FLOAT32, "gradient_of_column_parts"),
        ("BatchNormReluGrad", (64, 3, 7, 7), FLOAT16, "gradient_of_single_channel_parts"),
    ],
)
def test_the_plan_suits_the_shape(name, shape, t, expected) -> None:
    op, taken, results = specs_of(name, shape, t)
    (launch,) = op.plan(H200, *taken, *results).steps
    assert launch.symbol == f"batch_norm__{expected}"
    assert launch.slots["RELU"] == "1"
    assert launch.config.shared_nbytes <= H200.max_shared_nbytes


@pytest.mark.parametrize(("name", "place"), [("BatchNormRelu", 5), ("BatchNormReluGrad", 2)])
def test_an_unaligned_residual_or_y_goes_by_elements(name, place) -> None:
    op, taken, results = specs_of(name, (8, 16, 32, 32))
    (launch,) = op.plan(H200, *taken, *results).steps
    assert "single" not in launch.symbol
    taken[place] = Spec(taken[place].shape, FLOAT32, aligned=False)
    (launch,) = op.plan(H200, *taken, *results).steps
    assert "single_channel_parts" in launch.symbol


@pytest.mark.parametrize(
    ("name", "place", "message"),
    [
        ("BatchNormRelu", 5, r"BatchNormRelu: residual: expected shape \(2, 3, 4\), as X, got"),
        ("BatchNormRelu", 3, r"BatchNormRelu: running_mean: expected shape \(3,\), as X has"),
        ("BatchNormReluGrad", 2, r"BatchNormReluGrad: Y: expected shape \(2, 3, 4\), as X, got"),
        ("BatchNormReluGrad", 0, r"BatchNormReluGrad: dY: expected shape \(2, 3, 4\), as X, got"),
    ],
)
def test_other_shapes_are_refused_and_nothing_is_written(rng, name, place, message) -> None:
    arrays = list(inputs(rng, name, (2, 3, 4)))
    arrays[place] = arrays[place][:1].copy()
    before = [array.copy() for array in arrays]
    with pytest.raises(ArgumentError, match=message):
        get_op(name)()(*arrays)
    assert all((a == b).all() for a, b in zip(arrays, before, strict=True))


def test_one_array_for_both_running_statistics_is_refused(rng) -> None:
    x, scale, bias, mean, _, residual = inputs(rng, "BatchNormRelu", (2, 3, 4))
    with pytest.raises(ArgumentError, match="running_var"):
        FORWARD(x, scale, bias, mean, mean, residual)
