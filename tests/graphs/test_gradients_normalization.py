# SPDX-License-Identifier: MIT
"""Gradients of normalization, softmax and dropout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

import cupy_training_ops as cto
from cupy_training_ops.onnx.gradients import add_gradients
from cupy_training_ops.onnx.graph import Value
from cupy_training_ops.onnx.models import read_inferred
from cupy_training_ops.onnx.writing import model_of as written

from .one_operator import check_gradients, check_types, model_of

torch = pytest.importorskip("torch")

# ONNX computes statistics in float32 where no attribute says otherwise.
RMS = {"opset": 23, "stash_type": onnx.TensorProto.DOUBLE}
GROUPS = {"num_groups": 2, "stash_type": onnx.TensorProto.DOUBLE}
# An operator, shapes of its inputs, attributes.
CASES = {
    "layer": ("LayerNormalization", [(3, 5), (5,), (5,)], {}),
    "layer of planes": ("LayerNormalization", [(2, 3, 4), (3, 4), (3, 4)], {"axis": -2}),
    "layer without a bias": ("LayerNormalization", [(2, 3, 4), (4,)], {"epsilon": 0.1}),
    "rms": ("RMSNormalization", [(3, 5), (5,)], {**RMS, "epsilon": 0.1}),
    "rms of planes": ("RMSNormalization", [(2, 3, 4), (3, 4)], {**RMS, "axis": 1}),
    "simplified": ("SimplifiedLayerNormalization", [(3, 5), (5,)], {"epsilon": 0.01}),
    "instance": ("InstanceNormalization", [(2, 3, 4, 2), (3,), (3,)], {}),
    "instance of lines": ("InstanceNormalization", [(2, 1, 5), (1,), (1,)], {"epsilon": 0.1}),
    "group": ("GroupNormalization", [(2, 4, 3, 2), (4,), (4,)], {**GROUPS, "opset": 21}),
    "group of 18": ("GroupNormalization", [(2, 4, 3), (2,), (2,)], {"num_groups": 2}),
    "norm 2": ("LpNormalization", [(3, 5)], {}),
    "norm 1": ("LpNormalization", [(3, 5)], {"p": 1, "axis": 0}),
    "response": ("LRN", [(2, 7, 3, 2)], {"size": 3, "alpha": 0.5, "beta": 0.6, "bias": 1.5}),
    "response, even": ("LRN", [(2, 5, 3)], {"size": 4, "alpha": 0.9}),
    "mean and variance": ("MeanVarianceNormalization", [(3, 2, 3, 2)], {}),
    "softmax": ("Softmax", [(3, 5)], {}),
    "softmax of columns": ("Softmax", [(3, 2, 2)], {"axis": 0}),
    "logarithms": ("LogSoftmax", [(3, 5)], {"axis": -2}),
}


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_finite_differences(name, is_dynamic, rng) -> None:
    op_type, shapes, options = CASES[name]
    inputs = [rng.standard_normal(shape) for shape in shapes]
    check_gradients(op_type, inputs, rng, is_dynamic=is_dynamic, **options)


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_batch_norm_by_running_statistics(rank, rng) -> None:
    """Gradients of all five inputs, beside PyTorch's."""
    shape = (3, 2, 4, 2)[:rank]
    arrays = [rng.standard_normal(s) for s in (shape, (2,), (2,), (2,))]
    arrays.append(rng.uniform(0.5, 2, 2))
    graph, _ = read_inferred(model_of("BatchNormalization", arrays, epsilon=0.0078125), 17)
    names = [f"in{i}" for i in range(5)]
    whole, gradients = add_gradients(graph, "loss", names)
    outputs = tuple(Value(gradients[name], None, None) for name in names)
    session = cto.onnx.Session(written(replace(whole, outputs=outputs), "gradients"))
    weights = rng.standard_normal(shape)
    results = session.run({"y0_weights": weights})
    x, scale, bias, mean, var = ours = [torch.tensor(a, requires_grad=True) for a in arrays]
    each = (-1, *[1] * (rank - 2))
    xhat = (x - mean.view(each)) / (var.view(each) + 0.0078125).sqrt()
    y = xhat * scale.view(each) + bias.view(each)
    (y * torch.tensor(weights)).sum().backward()
    for name, tensor in zip(names, ours, strict=True):
        np.testing.assert_allclose(results[gradients[name]], tensor.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 2), (2, 3, 4, 2)])
def test_batch_norm_is_trained_as_by_pytorch(shape, rng) -> None:
    """Three steps: scale, bias, x, running statistics, and the loss by these."""
    x, scale, bias = (rng.standard_normal(s) for s in (shape, (3,), (3,)))
    mean, var = rng.standard_normal(3), rng.uniform(0.5, 2, 3)
    arrays = [x, scale, bias, mean, var]
    model = model_of("BatchNormalization", arrays, epsilon=0.0078125, momentum=0.75)
    session = cto.onnx.TrainingSession.from_model(
        model, loss="loss", trainable=["in0", "in1", "in2"], optimizer="SGD"
    )
    session.lr = 0.125
    weights = rng.standard_normal(shape)
    ours = [torch.tensor(a, requires_grad=True) for a in arrays[:3]]
    running = [torch.tensor(a) for a in arrays[3:]]

    def loss_of(training: bool) -> torch.Tensor:
        y = torch.nn.functional.batch_norm(ours[0], *running, *ours[1:], training, 0.25, 0.0078125)
        return (y * torch.tensor(weights)).sum()

    for _ in range(3):
        loss = loss_of(True)
        gradients = torch.autograd.grad(loss, ours)
        assert abs(float(session.step(weights)) - loss.item()) < 1e-11
        for array, gradient in zip(ours, gradients, strict=True):
            array.data -= 0.125 * gradient
    for i, array in enumerate(ours):
        np.testing.assert_allclose(session.parameters[f"in{i}"], array.detach(), rtol=0, atol=1e-11)
    assert abs(float(session.eval(weights)) - loss_of(False).item()) < 1e-11


@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize("ratio", [None, 0.0, 0.4])
def test_a_dropout_s_gradient_is_that_of_what_is_left(ratio, has_mask, rng) -> None:
    """loss = sum of w y: of the elements that are left the gradient is w / (1 - ratio)."""
    x = rng.uniform(1, 2, (40, 30))
    inputs = [x] if ratio is None else [x, np.array(ratio)]
    model = model_of("Dropout", inputs, n_others=int(has_mask))
    session = cto.onnx.TrainingSession.from_model(model, loss="loss", optimizer="SGD", seed=5)
    weights = rng.uniform(1, 2, x.shape)
    loss = session.accumulate(weights)
    gradient = session.gradients["in0"]
    part = 0.5 if ratio is None else ratio
    is_left = gradient != 0
    np.testing.assert_allclose(gradient[is_left], (weights / (1 - part))[is_left], rtol=1e-12)
    np.testing.assert_allclose(float(loss), (gradient * x).sum(), rtol=1e-12)
    assert abs(is_left.mean() - (1 - part)) < 0.1
    np.testing.assert_allclose(float(session.eval(weights)), (weights * x).sum(), rtol=1e-12)


@pytest.mark.parametrize("is_computed", [False, True])
def test_a_dropout_does_as_its_training_mode_says(is_computed, rng) -> None:
    """In training and in evaluation, if that is an input or computed of one."""
    x, mode = rng.uniform(1, 2, (40, 30)), "wrong" if is_computed else "mode"
    model = model_of("Dropout", [x, np.array(0.5), np.array(True)])
    model.graph.initializer.pop()
    (dropout,) = (node for node in model.graph.node if node.op_type == "Dropout")
    dropout.input[2] = "in2"
    model.graph.input.append(onnx.helper.make_tensor_value_info(mode, onnx.TensorProto.BOOL, ()))
    kind, names = ("Not", [mode]) if is_computed else ("Identity", [mode])
    model.graph.node.insert(0, onnx.helper.make_node(kind, names, ["in2"]))
    session = cto.onnx.TrainingSession.from_model(
        model, loss="loss", optimizer="SGD", trainable=["in0"], seed=5
    )
    weights, before = rng.uniform(1, 2, x.shape), 0.0
    for flag in (True, False):
        feeds = {mode: np.array(flag != is_computed), "y0_weights": weights}
        session.accumulate(**feeds)
        gradient = session.gradients["in0"] - before
        before = session.gradients["in0"].copy()
        part = (gradient == 0).mean()
        assert abs(part - flag * 0.5) < 0.1
        is_whole = np.isclose(float(session.eval(**feeds)), (weights * x).sum(), rtol=1e-9)
        assert is_whole is not flag


def test_hardmax_has_no_gradient(rng) -> None:
    model = model_of("Hardmax", [rng.standard_normal((2, 3))])
    with pytest.raises(cto.ArgumentError, match="that the loss depends on"):
        cto.onnx.TrainingSession.from_model(model, loss="loss")


def test_a_gradient_of_statistics_is_refused(rng) -> None:
    shapes = ((2, 3), (3,), (3,))
    model = model_of("LayerNormalization", [rng.standard_normal(s) for s in shapes], n_outputs=2)
    with pytest.raises(cto.ArgumentError, match="output 'y1' is not known"):
        cto.onnx.TrainingSession.from_model(model, loss="loss")


# The body of "mean and variance" has numbers of float32.
@pytest.mark.parametrize("name", sorted(CASES.keys() - {"mean and variance"}))
def test_narrow_types(name, rng) -> None:
    op_type, shapes, options = CASES[name]
    inputs = [rng.standard_normal(shape) for shape in shapes]
    options = {k: v for k, v in options.items() if k != "stash_type"}
    check_types(op_type, inputs, shapes[0], rng, **options)


@pytest.mark.parametrize(
    ("op_type", "options"),
    [("LpNormalization", {"p": 2}), ("LpNormalization", {"p": 1}), ("LRN", {"size": 3})],
)
def test_squares_and_sums_that_float16_does_not_have(op_type, options, rng) -> None:
    x = rng.uniform(300, 400, (1, 4, 2, 300))
    check_types(op_type, [x], x.shape, rng, **options)


def test_running_statistics_may_be_read_as_they_become(rng) -> None:
    """The running mean is an output of the model, too."""
    arrays = [rng.standard_normal((4, 3)), *(rng.standard_normal(3) for _ in range(3)), np.ones(3)]
    options = {"training_mode": 1, "momentum": 0.75, "n_others": 2}
    model = model_of("BatchNormalization", arrays, **options)
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info("other0"))
    session = cto.onnx.TrainingSession.from_model(model, loss="loss", trainable=["in1"])
    expected = 0.75 * arrays[3] + 0.25 * arrays[0].mean(axis=0)
    session.accumulate(np.ones((4, 3)))
    np.testing.assert_allclose(session.parameters["in3"], expected, rtol=0, atol=1e-15)
    xhat = (arrays[0] - expected) / np.sqrt(session.parameters["in4"] + 1e-5)
    loss = (xhat * arrays[1] + arrays[2]).sum()
    np.testing.assert_allclose(float(session.eval(np.ones((4, 3)))), loss, rtol=1e-9)
