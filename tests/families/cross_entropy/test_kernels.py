# SPDX-License-Identifier: MIT
"""Cross-entropy: each rule on both providers, every length, memory, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cupy_training_ops import ArgumentError, get_op
from cupy_training_ops.device.launch import launch_log
from cupy_training_ops.dtypes import FLOAT16, FLOAT32, dtype_name
from cupy_training_ops.families.cross_entropy.samples import FAR
from cupy_training_ops.testing.compare import assert_matches

from .calls import BOTH, GRADIENT, LABELS, LOSS, call, reductions

NAN, INF = math.nan, math.inf


def everything(run, scores, labels, weights=None, ignore=None, reduction="mean"):
    """Loss and gradient by two calls, which one call gives too."""
    loss, log_prob = call(run, LOSS, scores, labels, weights, ignore, reduction=reduction)
    dy = np.ones(labels.shape if reduction == "none" else (), scores.dtype)
    given = (dy, log_prob, labels, weights, ignore)
    (gradient,) = call(run, GRADIENT, *given, reduction=reduction)
    one_loss, one_gradient = call(run, BOTH, scores, labels, weights, ignore, reduction=reduction)
    assert_matches(one_loss, loss)
    assert_matches(one_gradient, gradient)
    return loss, gradient


# ---- labels --------------------------------------------------------------------------------------


@reductions
@pytest.mark.parametrize("label", [-1, 37, 42, FAR, -FAR])
def test_a_label_out_of_range_is_nan_and_touches_nothing_else(
    anywhere, scores, label, reduction
) -> None:
    """Without an ignore_index none is ignored, -1 neither; in the divisor the row counts as 1."""
    labels = LABELS.copy()
    labels[2] = label
    loss, gradient = everything(anywhere, scores, labels, reduction=reduction)
    _, right = everything(anywhere, scores, LABELS, reduction=reduction)
    others = np.arange(6) != 2
    assert np.isnan(gradient[2]).all()
    assert_matches(gradient[others], right[others])
    assert np.isnan(loss).tolist() == ((~others).tolist() if reduction == "none" else True)


@reductions
@pytest.mark.parametrize("ignore", [-100, -1, 0, 36, 37, FAR, -(2**63), 2**63, 10**30])
def test_an_ignored_label_is_no_index(anywhere, scores, ignore, reduction) -> None:
    """Whatever its value: the other rows are as if it were not there."""
    may_occur = -(2**63) <= ignore < 2**63
    labels = np.where(ignore == LABELS, 1, LABELS)
    labels[1::3] = ignore if may_occur else 7
    kept = labels != ignore
    loss, gradient = everything(anywhere, scores, labels, None, ignore, reduction)
    part, expected = everything(anywhere, scores[kept], labels[kept], None, None, reduction)
    assert_matches(gradient[kept], expected)
    assert not gradient[~kept].any()
    assert_matches(loss[kept] if reduction == "none" else loss, part)


@reductions
def test_what_does_not_count_stays_out(anywhere, scores, reduction) -> None:
    """inf and NaN in ignored rows, in rows of weight 0, and the weight of an ignored class."""
    scores[0], scores[1], scores[2, 1] = NAN, INF, -INF
    labels, weights = np.array([4, 8, 36, 5, 5, 4]), np.ones(37, FLOAT32)
    weights[4], weights[8], weights[36] = INF, 0, 2
    loss, gradient = everything(anywhere, scores, labels, weights, 4, reduction)
    assert np.isfinite(loss).all()
    assert np.isfinite(gradient).all()
    assert not gradient[[0, 1, 5]].any()


@reductions
def test_an_infinite_slope_stays_out_of_rows_that_do_not_count(anywhere, scores, reduction) -> None:
    dy = np.full((6,) if reduction == "none" else (), INF, FLOAT32)
    labels = np.full(6, 7)
    (gradient,) = call(anywhere, GRADIENT, dy, scores, labels, None, 7, reduction=reduction)
    assert not gradient.any()


@reductions
@pytest.mark.parametrize("shape", [(3, 37), (3, 5003), (3, 37, 5)], ids=str)
def test_a_slope_of_0_beside_nan_is_nan_as_in_mathematics(anywhere, shape, reduction) -> None:
    """Only what does not count is 0 whatever is in it: ignored rows and rows of weight 0."""
    x = np.zeros(shape, FLOAT32)
    x[:, 1] = NAN
    labels = np.full((3, *shape[2:]), 2)
    labels[0], labels[1] = 7, 3
    weights = np.ones(shape[1], FLOAT32)
    weights[3] = 0
    dy = np.zeros(labels.shape if reduction == "none" else (), FLOAT32)
    attributes = {"reduction": reduction}
    (gradient,) = call(anywhere, GRADIENT, dy, x, labels, weights, 7, **attributes)
    assert not gradient[:2].any()
    expected = np.zeros(shape[1:], FLOAT32)
    expected[1] = NAN
    assert_matches(gradient[2], expected, 0)
    _, scaled = call(anywhere, BOTH, x, labels, weights, 7, 0.0, **attributes)
    assert not scaled[:2].any()
    assert np.isnan(scaled[2]).all()
    rows = x.reshape(3, shape[1], -1)[:, :, 0]
    given = np.zeros(3 if reduction == "none" else (), FLOAT32), rows, np.full(3, 2)
    (last,) = call(anywhere, "SparseSoftmaxCrossEntropyGrad", *given, **attributes)
    assert np.isnan(last).sum(1).tolist() == [1, 1, 1]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_without_rows_that_count_loss_and_gradient_are_0(anywhere, scores, reduction) -> None:
    weights = np.zeros(37, FLOAT32)
    for given in ((None, 5), (weights, None)):
        loss, gradient = everything(anywhere, scores, np.full(6, 5), *given, reduction)
        assert float(loss) == 0
        assert not gradient.any()
    bias = np.full(scores.shape, 3, FLOAT32)
    inputs = (np.float32(1).reshape(1), scores, LABELS, weights, None, bias)
    (gradient,) = call(anywhere, GRADIENT, *inputs, reduction=reduction)
    assert (gradient == 3).all()


@reductions
def test_an_empty_batch_and_no_classes(anywhere, reduction) -> None:
    empty, none = np.zeros((0, 5), FLOAT32), np.zeros((2, 0), FLOAT32)
    for name in (LOSS, BOTH, "SoftmaxCrossEntropyLoss", "SparseSoftmaxCrossEntropy"):
        loss, rest = call(anywhere, name, empty, np.zeros(0, np.int32), reduction=reduction)
        assert rest.shape == (0, 5)
        assert loss.tolist() == ([] if reduction == "none" else 0)
    options = {"reduction": reduction, "label_smoothing": 0.1}
    for name in (BOTH, "MeasuredCrossEntropyLossAndGrad"):
        loss, rest, *_ = call(anywhere, name, empty, np.zeros(0, np.int32), **options)
        assert rest.shape == (0, 5)
        assert loss.tolist() == ([] if reduction == "none" else 0)
    loss, _ = call(anywhere, LOSS, none, np.array([0, 1]), None, 1, reduction=reduction)
    assert np.isnan(loss).tolist() == ([True, False] if reduction == "none" else True)


@reductions
@pytest.mark.parametrize("shape", [(2, 6, 0), (0, 6, 3), (2, 0, 0), (2, 6, 4, 0)], ids=str)
def test_an_empty_inner_axis_has_no_rows(anywhere, shape, reduction) -> None:
    x, labels = np.zeros(shape, FLOAT32), np.zeros((shape[0], *shape[2:]), np.int64)
    with launch_log() as log:
        for name in (LOSS, BOTH, "SoftmaxCrossEntropyLoss"):
            loss, rest = call(anywhere, name, x, labels, reduction=reduction)
            assert rest.shape == shape
            assert loss.tolist() == (labels.tolist() if reduction == "none" else 0)
        dy = np.ones(labels.shape if reduction == "none" else (), FLOAT32)
        (gradient,) = call(anywhere, GRADIENT, dy, x, labels, reduction=reduction)
    assert gradient.shape == shape
    assert {launch.symbol for launch in log} <= {"cross_entropy__total"}


@pytest.mark.parametrize("label_smoothing", [0.0, 0.25])
@pytest.mark.parametrize("start", [0, 1])
def test_scores_of_any_size_are_capped_over_several_batches(
    anywhere, rng, start, label_smoothing
) -> None:
    """Beside the formula in float64: +infinity is the cap, -infinity a masked class, NaN a loss of
    NaN. Rows begin at and beside a vector."""
    n, cap, rows = 20_003, 30.0, 5
    x = (40 * rng.standard_normal((rows, n))).astype(FLOAT32)
    x[:, ::977], x[:3, 5], x[4, 19_001] = 1e-6, INF, NAN
    if not label_smoothing:  # else a masked class has a share, and the loss is infinite
        x[:, 11::1009] = -INF
    labels = np.array([5, 0, 20_002, 10_000, 7])
    placed = anywhere.place(x, start)
    op = get_op(BOTH)(reduction="none", softcap=cap, label_smoothing=label_smoothing)
    loss, gradient = map(anywhere.host, op(placed, anywhere.place(labels)))
    wide = x.astype(np.float64)
    s = np.where(wide == -INF, -INF, cap * np.tanh(wide / cap))
    log_prob = s - s.max(1, keepdims=True)
    log_prob -= np.log(np.exp(log_prob).sum(1, keepdims=True))
    target = np.full(s.shape, label_smoothing / n)
    target[np.arange(rows), labels] += 1 - label_smoothing
    products = np.multiply(target, log_prob, out=np.zeros_like(s), where=target != 0)
    expected = -products.sum(1)
    assert_matches(loss, expected.astype(FLOAT32))
    slope = np.where(wide == -INF, 0, 1 - np.tanh(wide / cap) ** 2)
    expected = (np.exp(log_prob) - target) * slope
    assert np.isnan(gradient[4]).all()
    np.testing.assert_allclose(gradient[:4], expected[:4], rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("n", [4_001, 9_000])
@pytest.mark.parametrize("of_weights", [0, 1, 4])
@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32], ids=dtype_name)
def test_weights_of_classes_are_read_wherever_they_begin(
    anywhere, rng, dtype, of_weights, n
) -> None:
    """By vectors if their address allows it; beside the formula in float64."""
    rows, smoothing = 3, 0.25
    x, labels = rng.standard_normal((rows, n)).astype(dtype), rng.integers(0, n, rows)
    weights = rng.uniform(0.5, 2, n).astype(dtype)
    op = get_op(BOTH)(reduction="none", label_smoothing=smoothing)
    placed = anywhere.place(x), anywhere.place(labels), anywhere.place(weights, of_weights)
    loss, gradient = map(anywhere.host, op(*placed))
    log_prob = x.astype(np.float64)
    log_prob -= np.log(np.exp(log_prob).sum(1, keepdims=True))
    wide = weights.astype(np.float64)
    share = np.broadcast_to(wide * smoothing / n, log_prob.shape).copy()
    share[np.arange(rows), labels] += wide[labels] * (1 - smoothing)
    assert_matches(loss, (-(share * log_prob).sum(1)).astype(dtype))
    expected = np.exp(log_prob) * share.sum(1, keepdims=True) - share
    tolerance = {"rtol": 2e-3, "atol": 1e-6} if dtype == FLOAT16 else {"rtol": 2e-5, "atol": 1e-8}
    np.testing.assert_allclose(gradient, expected, **tolerance)


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_the_first_of_classes_that_score_most_over_several_batches(
    anywhere, start, softcap
) -> None:
    n = 20_003
    places = [[20_002], [0, 20_002], [19_999, 20_000], [1, 2], [4099, 13, 15_000]]
    x = np.zeros((len(places), n), FLOAT32)
    for row, classes in enumerate(places):
        x[row, classes] = 3
    op = get_op("MeasuredCrossEntropyLossAndGrad")(softcap=softcap or 0.0)
    predicted = op(anywhere.place(x, start), anywhere.place(np.zeros(len(places), np.int64)))[3]
    assert anywhere.host(predicted).tolist() == [min(classes) for classes in places]


def test_rows_that_are_infinite_are_nan(anywhere) -> None:
    """-inf alone and +inf, as in PyTorch; -inf at the label alone is a loss of inf."""
    rows = np.zeros((4, 40), FLOAT32)
    rows[0], rows[1, 7], rows[2, 3], rows[3, 4] = -INF, INF, -INF, -INF
    labels = np.array([3, 3, 3, 3])
    loss, _ = call(anywhere, LOSS, rows, labels, reduction="none")
    assert_matches(loss, np.array([NAN, NAN, INF, math.log(39)], FLOAT32))


def test_a_target_of_0_has_no_part(anywhere) -> None:
    """Upstream multiplies it with a log-probability of -inf."""
    scores = np.array([[0, -INF, 0], [-INF, -INF, -INF], [0, -INF, 0]], FLOAT32)
    target = np.array([[0.5, 0, 0.5], [0, 0, 0], [0.5, 0.5, 0]], FLOAT32)
    loss, _ = call(anywhere, "SoftmaxCrossEntropy", scores, target, reduction="none")
    assert_matches(loss, np.array([math.log(2), 0, INF], FLOAT32))


@pytest.mark.parametrize("label", [-1, 37, FAR])
def test_check_names_the_first_row(anywhere, scores, label) -> None:
    labels = LABELS.copy()
    labels[[1, 3]] = 8, label
    log_prob, weights = scores, np.ones(37, FLOAT32)
    calls = {
        LOSS: (scores, labels, weights, 8),
        GRADIENT: (np.ones((), FLOAT32), log_prob, labels, None, 8),
        BOTH: (scores, labels, weights, 8, 2.0),
        "SparseSoftmaxCrossEntropy": (scores, labels),
        "SoftmaxCrossEntropyLossGrad": (np.ones(1, FLOAT32), log_prob, labels),
    }
    for name, inputs in calls.items():
        op = get_op(name)(check=True)
        words = rf"{name}: labels?: expected labels from 0 to 36, got {label} in row 3"
        with pytest.raises(ArgumentError, match=words):
            op(*anywhere.place_inputs(op, inputs))
        labels[3] = 0
        op(*anywhere.place_inputs(op, inputs))
        labels[3] = label
