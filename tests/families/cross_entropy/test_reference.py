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


@pytest.mark.parametrize(
    ("attributes", "weighted", "message"),
    [
        (
            {"label_smoothing": 1.5},
            False,
            "label_smoothing: expected a number from 0 to 1, got 1.5",
        ),
        ({"softcap": -1.0}, False, "softcap: expected a finite number of at least 0, got -1.0"),
        ({"label_smoothing": 0.1}, True, "weights: expected None with label_smoothing"),
    ],
)
def test_terms_that_are_refused(rng, attributes, weighted, message) -> None:
    scores, labels, weights = rows(rng, (4, 6))
    with pytest.raises(ArgumentError, match=message):
        apply(
            "CrossEntropyLossAndGrad", scores, labels, weights if weighted else None, **attributes
        )
