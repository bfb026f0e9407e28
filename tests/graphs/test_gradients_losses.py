# SPDX-License-Identifier: MIT
"""Losses and their gradients beside PyTorch, in float64."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import cupy_training_ops as cto
from cupy_training_ops.onnx.checks import Labels
from cupy_training_ops.onnx.losses import with_loss
from cupy_training_ops.onnx.models import read_inferred

from .one_operator import check_gradients, trained_x

torch = pytest.importorskip("torch")
functional = torch.nn.functional
SHAPES = [(4, 5), (3, 5, 2), (2, 5, 3, 2)]


def labels_of(shape, rng, ignore_index=None):
    labels = rng.integers(0, shape[1], (shape[0], *shape[2:]))
    if ignore_index is not None:
        labels.flat[:2] = ignore_index
    return labels


# ---- as operators --------------------------------------------------------------------------------


@pytest.mark.parametrize("ignore_index", [None, -100, 2])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("op_type", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
def test_gradients_of_losses(op_type, shape, reduction, is_weighted, ignore_index, rng) -> None:
    """In float64 beside finite differences and PyTorch."""
    options = {"reduction": reduction}
    if ignore_index is not None:
        options["ignore_index"] = ignore_index
    labels = labels_of(shape, rng, ignore_index)
    weights = [rng.uniform(0.5, 2, 5)] if is_weighted else []
    x = rng.standard_normal(shape)
    check_gradients(op_type, [x, labels, *weights], rng, trainable=[0], **options)
    is_dynamic = not weights  # each real input is reshaped, and weights have to be constants
    check_gradients(
        op_type, [x, labels, *weights], rng, trainable=[0], is_dynamic=is_dynamic, **options
    )
    nodes = [
        helper.make_node(op_type, ["x", "labels", *["weights"] * is_weighted], ["y"], **options),
        helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0),
    ]
    constants = {"labels": labels, **({"weights": weights[0]} if weights else {})}
    tensor = torch.tensor(x, requires_grad=True)
    names = {"SoftmaxCrossEntropyLoss": "cross_entropy", "NegativeLogLikelihoodLoss": "nll_loss"}
    loss = getattr(functional, names[op_type])(
        tensor,
        torch.tensor(labels),
        torch.tensor(weights[0]) if weights else None,
        reduction=reduction,
        **({} if ignore_index is None else {"ignore_index": ignore_index}),
    )
    loss.sum().backward()
    actual = trained_x(nodes, x, **constants).gradients["x"]
    np.testing.assert_allclose(actual, tensor.grad, atol=1e-12)


@pytest.mark.parametrize("reads_loss", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_log_probabilities_that_are_read_have_their_gradient(shape, reads_loss, rng) -> None:
    """loss = cross-entropy + sum of weights log_prob^2, with or without the first."""
    x, labels, scale = rng.standard_normal(shape), labels_of(shape, rng), rng.random(shape)
    nodes = [
        helper.make_node("SoftmaxCrossEntropyLoss", ["x", "labels"], ["entropy", "log_prob"]),
        helper.make_node("Mul", ["log_prob", "log_prob"], ["square"]),
        helper.make_node("Mul", ["square", "scale"], ["scaled"]),
        helper.make_node("ReduceSum", ["scaled"], ["sum"], keepdims=0),
        helper.make_node("Sum", ["sum", *["entropy"] * reads_loss], ["loss"]),
    ]
    actual = trained_x(nodes, x, labels=labels, scale=scale).gradients["x"]
    tensor = torch.tensor(x, requires_grad=True)
    loss = (tensor.log_softmax(1) ** 2 * torch.tensor(scale)).sum()
    if reads_loss:
        loss = loss + functional.cross_entropy(tensor, torch.tensor(labels))
    loss.backward()
    np.testing.assert_allclose(actual, tensor.grad, atol=1e-12)


def model_of_scores(shape, bias):
    """A model: scores = x + bias, with a batch of any size."""
    extents = ("n", *shape[1:])
    ends = [
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, extents)],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, extents)],
    ]
    nodes = [helper.make_node("Add", ["x", "bias"], ["y"])]
    initial = [onnx.numpy_helper.from_array(bias, "bias")]
    graph = helper.make_graph(nodes, "g", *ends, initial)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_weights_of_classes_are_not_trained(rng) -> None:
    x, labels, weights = rng.standard_normal((4, 3)), np.array([0, 2, 1, 1]), rng.random(3)
    nodes = [helper.make_node("SoftmaxCrossEntropyLoss", ["x", "labels", "weights"], ["loss"])]
    initial = {"x": x, "labels": labels, "weights": weights}
    arrays = [onnx.numpy_helper.from_array(array, name) for name, array in initial.items()]
    loss = helper.make_tensor_value_info("loss", TensorProto.DOUBLE, ())
    graph = helper.make_graph(nodes, "g", [], [loss], arrays)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    session = cto.onnx.TrainingSession.from_model(model, loss="loss", optimizer="SGD")
    assert list(session.parameters) == ["x"]
    with pytest.raises(
        cto.ArgumentError, match="trainable: expected names of the model's parameters"
    ):
        cto.onnx.TrainingSession.from_model(model, loss="loss", trainable=["weights"])
    graph.node.insert(0, helper.make_node("Abs", ["weights"], ["sizes"]))
    graph.node[1].input[2] = "sizes"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    with pytest.raises(cto.ArgumentError, match="weights of classes have no gradient"):
        cto.onnx.TrainingSession.from_model(model, loss="loss", optimizer="SGD")


# ---- that are added to a model -------------------------------------------------------------------


def by_last_axis(scores, labels):
    return functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), labels.reshape(-1))


NAMED = [
    ("cross_entropy", functional.cross_entropy, (4, 5)),
    ("cross_entropy", functional.cross_entropy, (2, 5, 3)),
    ("token_cross_entropy", by_last_axis, (4, 5)),
    ("token_cross_entropy", by_last_axis, (2, 3, 5)),
    ("token_cross_entropy", by_last_axis, (2, 3, 2, 5)),
    ("mse", functional.mse_loss, (4, 5)),
    ("l1", functional.l1_loss, (4, 5)),
    ("bce_with_logits", functional.binary_cross_entropy_with_logits, (4, 5)),
]


def targets_of(loss, shape, rng):
    if loss == "cross_entropy":
        return labels_of(shape, rng)
    if loss == "token_cross_entropy":
        return rng.integers(0, shape[-1], shape[:-1])
    return rng.random(shape)


def compare_with_torch(loss, function, x, bias, targets):
    """The loss and the gradient of the bias are those of PyTorch."""
    session = cto.onnx.TrainingSession.from_model(
        model_of_scores(x.shape, bias), loss=loss, optimizer="SGD"
    )
    actual = session.accumulate(x, targets)
    tensor = torch.tensor(bias, requires_grad=True)
    expected = function(torch.tensor(x) + tensor, torch.tensor(targets))
    expected.backward()
    assert abs(float(actual) - expected.item()) < 1e-12
    np.testing.assert_allclose(session.gradients["bias"], tensor.grad, atol=1e-12)
    assert abs(float(session.eval(x, targets)) - expected.item()) < 1e-12
    return session


@pytest.mark.parametrize(("loss", "function", "shape"), NAMED)
def test_losses_by_name_are_those_of_pytorch(loss, function, shape, rng) -> None:
    x, bias = rng.standard_normal(shape), rng.standard_normal(shape[1:])
    compare_with_torch(loss, function, x, bias, targets_of(loss, shape, rng))


@pytest.mark.parametrize("loss", ["cross_entropy", "token_cross_entropy"])
def test_labels_out_of_range_are_refused_by_their_name(loss, rng) -> None:
    shape = (4, 5)
    model = model_of_scores(shape, np.zeros(5))
    session = cto.onnx.TrainingSession.from_model(model, loss=loss)
    with pytest.raises(cto.ArgumentError, match="labels: expected labels from 0 to 4, got 5"):
        session.step(rng.standard_normal(shape), np.array([0, 1, 5, 2]))


@pytest.mark.parametrize("loss", ["cross_entropy", "token_cross_entropy"])
def test_labels_that_are_fed_to_a_device_are_looked_at_first(loss) -> None:
    """A loss takes the feed, or the feed in another shape."""
    graph = with_loss(read_inferred(model_of_scores((4, 5), np.zeros(5)), 17)[0], loss)
    labels = Labels(graph)
    labels.note_range("labels", np.array([0, 1, 5, 2]))
    with pytest.raises(cto.ArgumentError, match="labels: expected labels from 0 to 4, got 5"):
        labels.check({graph.nodes[-1].outputs[0]: 5})


def function_of(nodes, opset=17, inputs=("scores", "labels"), outputs=("loss",)):
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_function("own", "name", list(inputs), list(outputs), nodes, opsets)


def huber(scores, labels):
    return functional.huber_loss(scores, labels)


HUBER = [
    helper.make_node("Sub", ["scores", "labels"], ["d"]),
    helper.make_node("Abs", ["d"], ["size"]),
    helper.make_node("Constant", [], ["one"], value_float=1.0),
    helper.make_node("Constant", [], ["half"], value_float=0.5),
    helper.make_node("CastLike", ["one", "d"], ["one_like"]),
    helper.make_node("CastLike", ["half", "d"], ["half_like"]),
    helper.make_node("Min", ["size", "one_like"], ["near"]),
    helper.make_node("Mul", ["near", "half_like"], ["half_near"]),
    helper.make_node("Sub", ["size", "half_near"], ["rest"]),
    helper.make_node("Mul", ["near", "rest"], ["each"]),
    helper.make_node("ReduceMean", ["each"], ["loss"], keepdims=0),
]


def test_a_function_may_be_the_loss(rng) -> None:
    """Huber's: d^2 / 2 where |d| < 1, else |d| - 1/2."""
    x, bias = 2 * rng.standard_normal((4, 5)), rng.standard_normal(5)
    compare_with_torch(function_of(HUBER), huber, x, bias, rng.standard_normal((4, 5)))


def test_a_function_of_integers_may_be_the_loss(rng) -> None:
    options = {"reduction": "sum"}
    nodes = [helper.make_node("SoftmaxCrossEntropyLoss", ["scores", "labels"], ["loss"], **options)]
    x, bias = rng.standard_normal((4, 5)), rng.standard_normal(5)

    def sum_of_all(scores, labels):
        return functional.cross_entropy(scores, labels, reduction="sum")

    loss = function_of(nodes, opset=13)
    compare_with_torch(loss, sum_of_all, x, bias, rng.integers(0, 5, 4))


def test_functions_that_are_no_loss_are_refused() -> None:
    model = model_of_scores((4, 5), np.zeros(5))
    rows = [helper.make_node("ReduceMean", ["scores"], ["loss"], axes=[1], keepdims=0)]
    mean = [helper.make_node("ReduceMean", ["scores"], ["loss"], keepdims=0)]
    text = [helper.make_node("StringNormalizer", ["labels"], ["loss"])]
    for function, words in (
        (function_of(rows), "or a function that gives one number"),
        (function_of(mean, inputs=("scores",)), "a function of scores and labels"),
        (function_of(mean, opset=18), "opset 17, the model's, or an older one, got opset 18"),
        (function_of(text), "its types do not fit"),
        ("no_such_loss", "one of cross_entropy, token_cross_entropy"),
        (3, "onnx.FunctionProto, got 3"),
    ):
        with pytest.raises(cto.ArgumentError, match=words):
            cto.onnx.TrainingSession.from_model(model, loss=function)


def test_a_function_that_turns_out_to_give_more_numbers_is_refused_as_it_runs(rng) -> None:
    """Labels have no declared shape, so that nothing says what scores - labels has."""
    model = model_of_scores((4, 5), np.zeros(5))
    loss = function_of([helper.make_node("Sub", ["scores", "labels"], ["loss"])])
    session = cto.onnx.TrainingSession.from_model(model, loss=loss, optimizer="SGD")
    x = rng.standard_normal((4, 5))
    with pytest.raises(cto.ArgumentError, match="onnx::loss::2"):
        session.step(x, x)


def test_a_mean_over_more_labels_than_float16_counts_has_a_gradient() -> None:
    """n = 90000, loss = 4096 times the mean: dx = -4096 / n at the labels, not 0."""
    nodes = [
        helper.make_node("NegativeLogLikelihoodLoss", ["x", "labels"], ["mean"]),
        helper.make_node("Cast", ["mean"], ["wide"], to=TensorProto.DOUBLE),
        helper.make_node("Mul", ["wide", "scale"], ["loss"]),
    ]
    constants = {"labels": np.ones((1, 300, 300), np.int64), "scale": np.array(4096.0)}
    session = trained_x(nodes, np.zeros((1, 2, 300, 300), np.float16), **constants)
    np.testing.assert_allclose(session.gradients["x"][:, 1], -4096 / 90000, rtol=2e-3)
    assert not session.gradients["x"][:, 0].any()
