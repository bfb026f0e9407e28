# SPDX-License-Identifier: MIT
"""Gradients through quantized numbers beside PyTorch's fake quantization, in float32."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from .one_operator import trained_x

torch = pytest.importorskip("torch")
NEAR = 1e-3  # sums of numbers near 100, of which a difference is left, in float32
KINDS = [(np.uint8, 0, 255), (np.int8, -128, 127)]


def rounded(x, scale, zero, weights, *, between=(), trainable=("x", "scale"), **attributes):
    """A session with the gradients of sum(weights dequantized(quantized(x)))."""
    middle = "r" if between else "q"
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], **attributes),
        *between,
        helper.make_node("DequantizeLinear", [middle, "scale", "zero"], ["y"], **attributes),
        helper.make_node("Mul", ["y", "weights"], ["weighted"]),
        helper.make_node("Cast", ["weighted"], ["wide"], to=TensorProto.DOUBLE),
        helper.make_node("ReduceSum", ["wide"], ["loss"], keepdims=0),
    ]
    return trained_x(nodes, x, trainable=trainable, scale=scale, zero=zero, weights=weights)


@pytest.mark.parametrize(("dtype", "least", "most"), KINDS)
def test_the_gradient_passes_where_nothing_was_cut(dtype, least, most, rng) -> None:
    """x and the scale beside PyTorch's learnable quantization."""
    x = np.float32(rng.uniform(-30, 30, (4, 50)))
    weights = np.float32(rng.standard_normal(x.shape))
    scale, zero = np.float32([0.125]), np.array([20], dtype)
    session = rounded(x, scale, zero, weights)
    tensors = [torch.tensor(each, requires_grad=True) for each in (x, scale)]
    places = torch.tensor([20.0], requires_grad=True)
    y = torch._fake_quantize_learnable_per_tensor_affine(*tensors, places, least, most, 1.0)
    (y * torch.tensor(weights)).sum().backward()
    np.testing.assert_array_equal(session.gradients["x"], tensors[0].grad)
    np.testing.assert_allclose(session.gradients["scale"], tensors[1].grad, 1e-4, NEAR)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scales_of_an_axis_have_gradients(axis, rng) -> None:
    x = np.float32(rng.uniform(-20, 20, (4, 3)))
    weights = np.float32(rng.standard_normal(x.shape))
    n = x.shape[axis]
    scale, zero = np.float32(rng.uniform(0.05, 0.2, n)), np.zeros(n, np.int8)
    session = rounded(x, scale, zero, weights, axis=axis)
    tensors = [torch.tensor(each, requires_grad=True) for each in (x, scale)]
    places = torch.zeros(n, requires_grad=True)
    y = torch._fake_quantize_learnable_per_channel_affine(
        *tensors, places, axis % 2, -128, 127, 1.0
    )
    (y * torch.tensor(weights)).sum().backward()
    np.testing.assert_allclose(session.gradients["x"], tensors[0].grad, rtol=1e-6)
    np.testing.assert_allclose(session.gradients["scale"], tensors[1].grad, 1e-4, NEAR)


def test_quantized_numbers_may_be_moved_between(rng) -> None:
    x = np.float32(rng.uniform(-5, 5, (4, 3)))
    weights = np.float32(rng.standard_normal((3, 4)))
    between = [helper.make_node("Transpose", ["q"], ["r"])]
    session = rounded(x, np.float32(0.125), np.int8(0), weights, between=between, trainable=["x"])
    np.testing.assert_array_equal(session.gradients["x"], weights.T)


def test_scales_of_weights_that_are_whole_numbers_are_trained(rng) -> None:
    """y = (q - zero) scale: dscale = sum of (q - zero) dy over the axis."""
    q, zero = rng.integers(-128, 128, (3, 4)).astype(np.int8), np.array([3, -5, 0, 7], np.int8)
    weights = np.float32(rng.standard_normal((3, 4)))
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "x", "zero"], ["y"]),
        helper.make_node("Mul", ["y", "weights"], ["weighted"]),
        helper.make_node("Cast", ["weighted"], ["wide"], to=TensorProto.DOUBLE),
        helper.make_node("ReduceSum", ["wide"], ["loss"], keepdims=0),
    ]
    session = trained_x(nodes, np.float32(rng.random(4)), q=q, zero=zero, weights=weights)
    expected = (weights * (q.astype(np.float32) - zero)).sum(axis=0)
    np.testing.assert_allclose(session.gradients["x"], expected, rtol=1e-5)


def test_quantized_numbers_may_be_scaled_by_other_operators(rng) -> None:
    """y = float(q) scale: dx = dy, by way of a double."""
    x = np.float32(rng.uniform(-5, 5, 4))
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("Cast", ["q"], ["wide"], to=TensorProto.DOUBLE),
        helper.make_node("Mul", ["wide", "weights"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0),
    ]
    weights = rng.standard_normal(4)
    session = trained_x(nodes, x, scale=np.float32(0.125), zero=np.int8(0), weights=weights)
    np.testing.assert_array_equal(session.gradients["x"], np.float32(weights) / 0.125)


def test_comparisons_of_quantized_numbers_have_no_gradient(rng) -> None:
    """loss = sum of x (q > 0): dx = q > 0."""
    x = np.float32(rng.standard_normal(5))
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("Cast", ["q"], ["is_there"], to=TensorProto.BOOL),
        helper.make_node("Cast", ["is_there"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "number"], ["y"]),
        helper.make_node("Cast", ["y"], ["wide"], to=TensorProto.DOUBLE),
        helper.make_node("ReduceSum", ["wide"], ["loss"], keepdims=0),
    ]
    session = trained_x(nodes, x, scale=np.float32(0.5), zero=np.int8(0))
    np.testing.assert_array_equal(session.gradients["x"], np.rint(x / 0.5) != 0)
