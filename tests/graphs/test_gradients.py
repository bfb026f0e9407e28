# SPDX-License-Identifier: MIT
"""Gradient graphs beside PyTorch: graphs of one operator, in float64."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import cupy_training_ops as cto

from .one_operator import check_gradients

torch = pytest.importorskip("torch")


def test_a_network_of_two_layers_is_trained_as_by_pytorch(rng: np.random.Generator) -> None:
    w = [rng.standard_normal(shape) for shape in ((10, 16), (16,), (16, 4), (4,))]
    x, labels = rng.standard_normal((8, 10)), rng.integers(0, 4, 8)
    nodes = [
        helper.make_node("Gemm", ["x", "w0", "w1"], ["a"]),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("Gemm", ["b", "w2", "w3"], ["scores"]),
    ]
    ends = [
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, ("n", 10))],
        [helper.make_tensor_value_info("scores", TensorProto.DOUBLE, ("n", 4))],
    ]
    initial = [onnx.numpy_helper.from_array(array, f"w{i}") for i, array in enumerate(w)]
    graph = helper.make_graph(nodes, "g", *ends, initial)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    session = cto.onnx.TrainingSession.from_model(model, loss="cross_entropy", optimizer="SGD")
    session.lr = 0.125
    ours = [torch.tensor(array, requires_grad=True) for array in w]
    for _ in range(5):
        scores = (torch.tensor(x) @ ours[0] + ours[1]).tanh() @ ours[2] + ours[3]
        loss = torch.nn.functional.cross_entropy(scores, torch.tensor(labels))
        gradients = torch.autograd.grad(loss, ours)
        assert abs(float(session.step(x, labels)) - loss.item()) < 1e-12
        for array, gradient in zip(ours, gradients, strict=True):
            array.data -= 0.125 * gradient
    for i, array in enumerate(ours):
        np.testing.assert_allclose(session.parameters[f"w{i}"], array.detach(), atol=1e-12)


ELEMENTWISE = ["Abs", "Cos", "Erf", "Exp", "Neg", "Relu", "Sigmoid", "Sin", "Softplus", "Tanh"]


@pytest.mark.parametrize("op_type", ELEMENTWISE)
def test_gradients_of_elementwise_operators(op_type, rng) -> None:
    check_gradients(op_type, [rng.standard_normal((3, 4))], rng)


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("op_type", ["Add", "Div", "Mul", "Sub"])
@pytest.mark.parametrize(
    "shapes", [((2, 3), (2, 3)), ((2, 3), (3,)), ((3, 1), (2, 1, 4)), ((), (2,))]
)
def test_gradients_are_summed_over_repeats(op_type, shapes, is_dynamic, rng) -> None:
    a, b = (rng.uniform(1, 2, shape) for shape in shapes)
    check_gradients(op_type, [a, b], rng, is_dynamic=is_dynamic)


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3), (3, 4)),
        ((3,), (3, 4)),
        ((2, 3), (3,)),
        ((3,), (3,)),
        ((5, 2, 3), (3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((6, 1, 2, 3), (5, 3, 4)),
        ((3,), (5, 3, 4)),
        ((5, 2, 3), (3,)),
        ((2, 3), (5, 3, 4)),
    ],
)
def test_gradients_of_products(shapes, rng) -> None:
    check_gradients("MatMul", [rng.standard_normal(s) for s in shapes], rng)
