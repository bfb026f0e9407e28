# SPDX-License-Identifier: MIT
"""The cross-entropy oracle against finite differences, JAX, worked rows and upstream's answers."""

from __future__ import annotations

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivatives import finite_differences, vjp
from within_rows import assert_within_rows

from cupy_training_ops import ArgumentError, get_op
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, FLOAT64
from cupy_training_ops.families.cross_entropy.samples import REDUCTIONS, TERMS
from cupy_training_ops.families.softmax.samples import logits
from cupy_training_ops.testing.compare import assert_matches

jax.config.update("jax_enable_x64", True)

INF = math.inf
NAN = float("nan")
ANSWERS = np.load(Path(__file__).parents[2] / "data" / "ort_cuda_answers.npz")
IGNORED = 2
SHAPES = [(7, 5), (3, 5, 4), (2, 5, 3, 2)]

reductions = pytest.mark.parametrize("reduction", REDUCTIONS)
shapes = pytest.mark.parametrize("shape", SHAPES, ids=len)


def apply(name: str, *arrays, **attributes):
    return get_op(name)(**attributes)(*arrays)


def reduced(losses, weights, reduction):
    """In JAX."""
    if reduction == "none":
        return losses
    return losses.sum() / (weights.sum() if reduction == "mean" else 1)


def jax_loss(scores, labels, weights, reduction):
    """As ONNX defines it, of labels some of which are IGNORED."""
    log_prob = jax.nn.log_softmax(scores, 1)
    picked = jnp.take_along_axis(log_prob, labels[:, None], 1)[:, 0]
    of_rows = jnp.where(labels == IGNORED, 0.0, weights[labels])
    return reduced(-picked * of_rows, of_rows, reduction)


def rows(rng, shape):
    """Scores, labels, weights of classes and the gradient of each row's loss, in float64."""
    labels = rng.integers(0, shape[1], (shape[0], *shape[2:]))
    labels.reshape(-1)[:2] = 0, IGNORED
    scores, weights = logits(rng, shape, FLOAT64), rng.uniform(0.1, 2, shape[1])
    return scores, labels, weights


def slope(rng, labels, reduction):
    return logits(rng, labels.shape if reduction == "none" else (), FLOAT64)


@reductions
@shapes
def test_loss_and_gradient_are_jax(rng, shape, reduction) -> None:
    scores, labels, weights = rows(rng, shape)
    loss, log_prob = apply(
        "SoftmaxCrossEntropyLossInternal", scores, labels, weights, IGNORED, reduction=reduction
    )
    assert_matches(log_prob, np.asarray(jax.nn.log_softmax(scores, 1)))
    assert_matches(loss, np.asarray(jax_loss(scores, labels, weights, reduction)))
    dy, bias = slope(rng, labels, reduction), logits(rng, shape, FLOAT64)
    (expected,) = vjp(lambda s: jax_loss(s, labels, weights, reduction), [scores], dy)
    found = apply(
        "SoftmaxCrossEntropyLossInternalGrad",
        *(dy, log_prob, labels, weights, IGNORED, bias),
        reduction=reduction,
    )
    assert_matches(found, expected + bias)
    attributes = {"reduction": reduction, "ignore_index": IGNORED}
    onnx = apply("SoftmaxCrossEntropyLoss", scores, labels, weights, **attributes)
    assert all(map(np.array_equal, onnx, (loss, log_prob)))
    gradient = apply("SoftmaxCrossEntropyLossGrad", dy, log_prob, labels, weights, **attributes)
    assert_matches(gradient, expected)


@reductions
@shapes
def test_gradients_are_finite_differences(rng, shape, reduction) -> None:
    scores, labels, weights = rows(rng, shape)
    attributes = {"reduction": reduction, "ignore_index": IGNORED}
    dy = slope(rng, labels, reduction)
    _, log_prob = apply("SoftmaxCrossEntropyLoss", scores, labels, weights, **attributes)
    expected = finite_differences(
        lambda x: apply("SoftmaxCrossEntropyLoss", x, labels, weights, **attributes)[0], scores, dy
    )
    found = apply("SoftmaxCrossEntropyLossGrad", dy, log_prob, labels, weights, **attributes)
    assert np.abs(found - expected).max() < 1e-9


@reductions
@pytest.mark.parametrize("shape", [(7, 5), (3, 4, 5), (5,)])
@pytest.mark.parametrize("weighted", [False, True])
def test_sparse_losses_have_classes_last_and_weights_of_rows(
    rng, shape, reduction, weighted
) -> None:
    scores = logits(rng, shape, FLOAT64)
    labels = np.asarray(rng.integers(0, 5, shape[:-1]))
    weights = np.asarray(rng.uniform(0.1, 2, shape[:-1])) if weighted else np.ones(shape[:-1])

    def loss(scores):
        log_prob = jax.nn.log_softmax(scores)
        picked = jnp.take_along_axis(log_prob, labels[..., None], -1)[..., 0]
        return reduced(-picked * weights, weights, reduction)

    given = (labels, weights) if weighted else (labels,)
    found, log_prob = apply("SparseSoftmaxCrossEntropy", scores, *given, reduction=reduction)
    assert_matches(found, np.asarray(loss(scores)))
    dy = slope(rng, labels, reduction)
    (expected,) = vjp(loss, [scores], dy)
    gradient = apply("SparseSoftmaxCrossEntropyGrad", dy, log_prob, *given, reduction=reduction)
    assert_matches(gradient, expected)


@reductions
@pytest.mark.parametrize("shape", [(7, 5), (3, 4, 5), (5,)])
def test_dense_losses_are_jax_where_rows_sum_to_1(rng, shape, reduction) -> None:
    scores = logits(rng, shape, FLOAT64)
    target = rng.dirichlet(np.ones(5), shape[:-1])
    ones = np.ones(shape[:-1])

    def loss(scores):
        return reduced(-(target * jax.nn.log_softmax(scores)).sum(-1), ones, reduction)

    found, log_prob = apply("SoftmaxCrossEntropy", scores, target, reduction=reduction)
    assert_matches(found, np.asarray(loss(scores)))
    dy = slope(rng, ones, reduction)
    (expected,) = vjp(loss, [scores], dy)
    gradient = apply("SoftmaxCrossEntropyGrad", dy, log_prob, target, reduction=reduction)
    assert_matches(gradient, expected)


def test_dense_gradient_keeps_upstreams_formula(rng) -> None:
    """Also of rows that do not sum to 1, for which it is no gradient."""
    log_prob, target = logits(rng, (8, 3), FLOAT64), rng.uniform(0, 1, (8, 3))
    found = apply("SoftmaxCrossEntropyGrad", np.float64(3), log_prob, target)
    assert_matches(found, (np.exp(log_prob) - target) * 3 / 8)


@reductions
def test_loss_and_gradient_in_one_call_are_those_of_two(rng, reduction) -> None:
    scores, labels, weights = rows(rng, (3, 5, 4))
    loss, log_prob = apply(
        "SoftmaxCrossEntropyLossInternal", scores, labels, weights, IGNORED, reduction=reduction
    )
    dy = np.full(labels.shape if reduction == "none" else (), 32.0)
    gradient = apply(
        "SoftmaxCrossEntropyLossInternalGrad",
        *(dy, log_prob, labels, weights, IGNORED),
        reduction=reduction,
    )
    for scale in (32.0, np.array([32], np.float32)):
        found = apply(
            "CrossEntropyLossAndGrad", scores, labels, weights, IGNORED, scale, reduction=reduction
        )
        assert_matches(found[0], loss)
        assert_matches(found[1], gradient)


def test_worked_rows() -> None:
    """Of three equal classes; of one class; of scores that are sure."""
    loss, _ = apply("SoftmaxCrossEntropyLoss", np.zeros((2, 3)), np.array([0, 2]))
    assert_matches(loss, np.array(math.log(3)))
    loss, log_prob = apply("SoftmaxCrossEntropyLoss", np.full((2, 1), 5.0), np.array([0, 0]))
    assert (float(loss), log_prob.tolist()) == (0, [[0], [0]])
    scores = np.array([[0, -INF, -INF], [-INF, 0, -INF]])
    loss, _ = apply("SoftmaxCrossEntropyLoss", scores, np.array([0, 0]), reduction="none")
    assert loss.tolist() == [0, INF]


# ---- upstream's own answers ----------------------------------------------------------------------


def answer(case: str, *names: str) -> list[np.ndarray]:
    return [ANSWERS[f"{case}|in|{name}"] for name in names]


def assert_answers(run, case: str, found) -> None:
    """A loss, and log-probabilities with the classes second."""
    for i, array in enumerate(found):
        expected = ANSWERS[f"{case}|out{i}"]
        assert array.dtype == expected.dtype in (FLOAT32, FLOAT16)
        pair = (np.atleast_2d(x) for x in (run.host(array), expected))
        assert_within_rows(*(np.moveaxis(x, 1, -1) for x in pair))


@pytest.mark.parametrize("t", ["f4", "f2"])
def test_upstreams_answers(anywhere, t) -> None:
    case = f"SoftmaxCrossEntropyLossInternal[{t}]"
    inputs = map(anywhere.place, answer(case, "scores", "labels"))
    assert_answers(anywhere, case, apply("SoftmaxCrossEntropyLossInternal", *inputs))
    for name in ("SoftmaxCrossEntropyLossGrad", "SoftmaxCrossEntropyLossInternalGrad"):
        case = f"{name}[{t}]"
        inputs = map(anywhere.place, answer(case, "dY", "log_prob", "labels"))
        found, expected = anywhere.host(apply(name, *inputs)), ANSWERS[f"{case}|out0"]
        assert found.dtype == expected.dtype
        assert_within_rows(found, expected)


def test_upstreams_answers_with_weights(anywhere) -> None:
    case = "SoftmaxCrossEntropyLossInternal[f4,weights,ignore,4d]"
    arrays = map(anywhere.place, answer(case, "scores", "labels", "w"))
    (ignore,) = answer(case, "ignore")
    assert_answers(anywhere, case, apply("SoftmaxCrossEntropyLossInternal", *arrays, ignore))


@reductions
@shapes
def test_loss_and_gradient_are_pytorchs(anywhere, rng, shape, reduction) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra")
    scores, labels, weights = rows(rng, shape)
    scores[0, 1:3] = -INF
    dy, attributes = slope(rng, labels, reduction), {"reduction": reduction}
    theirs = torch.tensor(scores, requires_grad=True)
    wanted = torch.nn.functional.cross_entropy(
        theirs, *map(torch.tensor, (labels, weights)), ignore_index=IGNORED, **attributes
    )
    wanted.backward(torch.tensor(dy))
    placed, targets = anywhere.place(scores), [*map(anywhere.place, (labels, weights)), IGNORED]
    loss, log_prob = apply("SoftmaxCrossEntropyLossInternal", placed, *targets, **attributes)
    gradient = apply(
        "SoftmaxCrossEntropyLossInternalGrad",
        *(anywhere.place(dy), log_prob, *targets),
        **attributes,
    )
    assert_matches(anywhere.host(loss), wanted.detach().numpy())
    assert_matches(anywhere.host(gradient), theirs.grad.numpy())


@reductions
@pytest.mark.parametrize("terms", TERMS)
def test_regularized_losses_are_pytorchs_parts(anywhere, rng, terms, reduction) -> None:
    """Beside autograd of smoothed labels, the square of logsumexp, and a cap of a masked score."""
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra")
    scores, labels, _ = rows(rng, (4, 6, 5))
    if "label_smoothing" not in terms:
        scores[0, 1] = -INF
        labels[labels == 1] = 2
    theirs, target = torch.tensor(scores, requires_grad=True), torch.tensor(labels)
    capped, cap = theirs, terms.get("softcap", 0)
    if cap:
        capped = torch.where(theirs == -INF, theirs, cap * torch.tanh(theirs / cap))
    smoothing, square = terms.get("label_smoothing", 0), terms.get("lse_square_scale", 0)
    named = {"ignore_index": IGNORED, "label_smoothing": smoothing, "reduction": "none"}
    losses = torch.nn.functional.cross_entropy(capped, target, **named)
    counts = target != IGNORED
    losses = losses + torch.where(counts, square * capped.logsumexp(1).square(), 0)
    wanted = {"none": losses, "sum": losses.sum(), "mean": losses.sum() / counts.sum()}[reduction]
    wanted.sum().backward()
    loss, gradient = apply(
        "CrossEntropyLossAndGrad",
        *(anywhere.place(scores), anywhere.place(labels), None, IGNORED),
        reduction=reduction,
        **terms,
    )
    assert_matches(anywhere.host(loss), wanted.detach().numpy())
    assert_matches(anywhere.host(gradient), theirs.grad.numpy())


@reductions
@pytest.mark.parametrize("terms", TERMS)
def test_losses_against_probabilities_are_pytorchs(anywhere, rng, terms, reduction) -> None:
    """With weights of classes; gradients of scores and of probabilities."""
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra")
    scores, _, weights = rows(rng, (4, 6, 5))
    probabilities = rng.dirichlet(np.ones(6), (4, 5)).transpose(0, 2, 1).astype(scores.dtype)
    theirs, target = (torch.tensor(x, requires_grad=True) for x in (scores, probabilities.copy()))
    capped, cap = theirs, terms.get("softcap", 0)
    if cap:
        capped = cap * torch.tanh(theirs / cap)
    smoothing, square = terms.get("label_smoothing", 0), terms.get("lse_square_scale", 0)
    of_classes = torch.tensor(weights)
    named = {"label_smoothing": smoothing, "reduction": "none"}
    losses = torch.nn.functional.cross_entropy(capped, target, of_classes, **named)
    losses = losses + square * capped.logsumexp(1).square()
    wanted = {"none": losses, "sum": losses.sum(), "mean": losses.mean()}[reduction]
    wanted.sum().backward()
    placed = [*map(anywhere.place, (scores, np.ascontiguousarray(probabilities), weights))]
    found = apply("DenseCrossEntropyLossAndGrad", *placed, reduction=reduction, **terms)
    expected = wanted.detach(), theirs.grad, target.grad
    for actual, exact in zip(found, expected, strict=True):
        assert_matches(anywhere.host(actual), exact.numpy())


@reductions
def test_labels_smoothed_with_weights_are_pytorchs(anywhere, rng, reduction) -> None:
    """A class of weight 0 among the labels, whose rows have the smoothed part alone."""
    torch = pytest.importorskip("torch", reason="PyTorch is in no extra")
    scores, labels, weights = rows(rng, (4, 6, 5))
    weights[2], labels[0, :2] = 0, 2
    theirs = torch.tensor(scores, requires_grad=True)
    wanted = torch.nn.functional.cross_entropy(
        theirs,
        *map(torch.tensor, (labels, weights)),
        ignore_index=IGNORED,
        reduction=reduction,
        label_smoothing=0.2,
    )
    wanted.sum().backward()
    found = apply(
        "MeasuredCrossEntropyLossAndGrad",
        *map(anywhere.place, (scores, labels, weights)),
        IGNORED,
        reduction=reduction,
        label_smoothing=0.2,
    )
    assert_matches(anywhere.host(found[0]), wanted.detach().numpy())
    assert_matches(anywhere.host(found[1]), theirs.grad.numpy())
    assert not anywhere.host(found[2]).any()


def test_predicted_classes(anywhere) -> None:
    """The first of equal ones, -1 in ignored rows, and where softmax is NaN."""
    scores = np.full((7, 40), -1, np.float32)
    scores[0, 7], scores[1, [3, 9, 39]], scores[2, 39], scores[3, 5] = 2, 2, 2, NAN
    scores[4], scores[5, 1] = -INF, INF
    labels = np.array([7, 9, 0, 5, 0, 1, IGNORED])
    found = apply(
        "MeasuredCrossEntropyLossAndGrad",
        *map(anywhere.place, (scores, labels)),
        None,
        IGNORED,
    )
    assert anywhere.host(found[3]).tolist() == [7, 3, 39, -1, -1, -1, -1]


def test_probabilities_of_0_and_rows_of_weight_0_have_no_part(anywhere) -> None:
    """-infinity beside a probability of 0 is a class that is masked; PyTorch's loss is NaN."""
    scores = np.array([[0, -INF, 0], [NAN, INF, 0], [0, -INF, 0]], np.float32)
    target = np.array([[0.5, 0, 0.5], [1, 0, 0], [0.5, 0.5, 0]], np.float32)
    weights = np.array([1, 0, 1], np.float32)
    placed = [*map(anywhere.place, (scores, target))], anywhere.place(weights)
    found = apply("DenseCrossEntropyLossAndGrad", *placed[0], None, placed[1], reduction="none")
    loss, of_scores, of_target = map(anywhere.host, found)
    assert_matches(loss, np.array([np.log(2), 0, INF], np.float32))
    assert not of_scores[[0, 1]].any()
    assert not of_target[1].any()
    assert of_target[0, 1] == INF


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"label_smoothing": 1.5}, "label_smoothing: expected a number from 0 to 1, got 1.5"),
        ({"softcap": -1.0}, "softcap: expected a finite number of at least 0, got -1.0"),
    ],
)
def test_terms_that_are_refused(rng, attributes, message) -> None:
    scores, labels, _ = rows(rng, (4, 6))
    with pytest.raises(ArgumentError, match=message):
        apply("CrossEntropyLossAndGrad", scores, labels, **attributes)


@pytest.mark.parametrize(
    ("place", "shape", "message"),
    [
        (0, (4,), r"scores: expected shape \(N, C, \.\.\.\), got shape \(4,\)"),
        (1, (4, 5), r"target: expected shape \(4, 6\), as scores, got shape \(4, 5\)"),
        (2, (5,), r"weights: expected shape \(6,\), as the classes, got shape \(5,\)"),
        (3, (5,), r"row_weights: expected shape \(4,\), as scores without classes"),
    ],
)
def test_shapes_that_are_refused_against_probabilities(place, shape, message) -> None:
    inputs = [np.zeros(s, np.float32) for s in ((4, 6), (4, 6), (6,), (4,))]
    inputs[place] = np.zeros(shape, np.float32)
    if place == 0:
        inputs[1] = inputs[0]
    with pytest.raises(ArgumentError, match=message):
        apply("DenseCrossEntropyLossAndGrad", *inputs)
