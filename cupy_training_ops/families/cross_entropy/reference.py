# SPDX-License-Identifier: MIT
"""Cross-entropy losses and their gradients in NumPy. Formulas: `operators.py`.

A row is the scores of all classes for one label. Elements of large arrays are computed in float32,
of others in float64, and so are sums over rows. `check` says only what a call refuses.

reduction: "mean" (by the sum of rows' weights), "sum", or "none", a loss for each row.
ignore_index: the label of rows that do not count, None: there is none. output_type: the dtype of
the loss (None: of the scores). label_smoothing, lse_square_scale, softcap: see
CrossEntropyLossAndGrad.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...dtypes import FLOAT64, Dtype, HostArray
from ...rules.pieces import (
    below_zero,
    line_sums,
    log_of_lines,
    pieces,
    place_for,
    put,
    working_type,
)
from ...rules.step import number
from ...rules.widening import cast, in_range, quiet

_Pair = tuple[HostArray, HostArray]  # loss, and log-probabilities or a gradient


# ---- targets that are distributions --------------------------------------------------------------


@quiet
def softmax_cross_entropy(logits: HostArray, label: HostArray, *, reduction: str) -> _Pair:
    """Return (loss, log-probabilities of logits); label has a distribution for each row.

    Classes are the last axis of both. The loss has shape (), or that of the rows with "none".
    """
    log_prob, kind = np.empty(logits.shape, logits.dtype), working_type(logits)
    losses = np.empty(logits.shape[:-1], kind)
    flat, start = losses.reshape(-1, 1), 0
    for of_logits, target, of_log_prob in pieces(-1, logits, label, log_prob):
        logs = log_of_lines(of_logits, of_log_prob, kind)
        own = logs * target.astype(logs.dtype, copy=False)
        sums = line_sums(own)
        if not np.isfinite(sums).all():  # 0 times an infinite logarithm is 0
            sums = line_sums(np.where(target == 0, 0, own))
        flat[start : start + len(sums)] = -sums
        start += len(sums)
        put(of_log_prob, logs)
    wide_losses = in_range(_wide(losses), logits.dtype)
    loss = _reduce(wide_losses, np.ones(losses.shape), reduction)
    return cast(loss, logits.dtype), log_prob


@quiet
def softmax_cross_entropy_grad(
    dy: HostArray, log_prob: HostArray, label: HostArray, *, reduction: str
) -> HostArray:
    """Return the gradient of logits, (e^log_prob - label) dY / N; N: the rows for "mean", else 1.

    dy: the gradient of the loss, of one element, or of each row with "none".
    """
    count = np.prod(log_prob.shape[:-1]) if reduction == "mean" else 1
    scale = (_slope(dy, log_prob.shape[:-1], reduction) / count).reshape(-1, 1)
    gradient, start = np.empty(log_prob.shape, log_prob.dtype), 0
    kind = working_type(log_prob)
    for logs, target, of_gradient in pieces(-1, log_prob, label, gradient):
        result = place_for(of_gradient, kind)
        np.exp(logs.astype(kind, copy=False), out=result)
        result -= target.astype(kind, copy=False)
        result *= scale[start : start + len(logs)].astype(kind)
        start += len(logs)
        put(of_gradient, result)
    return gradient


# ---- targets that are classes --------------------------------------------------------------------


def sparse_softmax_cross_entropy(
    logits: HostArray,
    label: HostArray,
    weight: HostArray | None = None,
    *,
    reduction: str,
    check: bool,  # noqa: ARG001
) -> _Pair:
    """Return (loss, log-probabilities); classes come last in logits.

    label: the class of each row. weight: of each row, None: 1. reduction: of the losses.
    """
    rows = _Rows(label, logits.shape[-1], None, weight)
    return rows.forward(logits, -1, reduction, logits.dtype)


@quiet
def sparse_softmax_cross_entropy_grad(
    dy: HostArray,
    log_prob: HostArray,
    label: HostArray,
    weight: HostArray | None = None,
    *,
    reduction: str,
    check: bool,  # noqa: ARG001
) -> HostArray:
    """Return the gradient of logits from dy, that of the loss; classes come last.

    label: the class of each row. weight: of each row, None: 1. reduction: the loss's.
    """
    rows = _Rows(label, log_prob.shape[-1], None, weight)
    return rows.gradient(dy, log_prob, -1, reduction, None, log_prob.dtype)


def softmax_cross_entropy_loss(
    scores: HostArray,
    labels: HostArray,
    weights: HostArray | None = None,
    *,
    reduction: str,
    ignore_index: int | None,
    check: bool,  # noqa: ARG001
) -> _Pair:
    """Return (loss, log-probabilities) of scores (N, C, ...); labels (N, ...), weights (C,).

    reduction: of the rows' losses. ignore_index: the label of rows that do not count, or None.
    """
    rows = _Rows.of_classes(labels, scores.shape[1], ignore_index, weights)
    return rows.forward(scores, 1, reduction, scores.dtype)


def softmax_cross_entropy_loss_internal(
    scores: HostArray,
    labels: HostArray,
    weights: HostArray | None = None,
    ignore_index: int | None = None,
    *,
    reduction: str,
    output_type: Dtype | None,
    check: bool,  # noqa: ARG001
) -> _Pair:
    """Return (loss, log-probabilities) of scores (N, C, ...), both of output_type.

    labels: (N, ...), classes or ignore_index. weights: (C,). reduction: of the losses.
    """
    rows = _Rows.of_classes(labels, scores.shape[1], ignore_index, weights)
    return rows.forward(scores, 1, reduction, output_type or scores.dtype)


def softmax_cross_entropy_loss_grad(
    dy: HostArray,
    log_prob: HostArray,
    label: HostArray,
    weight: HostArray | None = None,
    *,
    reduction: str,
    ignore_index: int | None,
    check: bool,
) -> HostArray:
    """Return the scores' gradient from dy, that of the loss with this reduction.

    log_prob: (N, C, ...). label: (N, ...), the class of each row, or ignore_index. weight: (C,).
    """
    return softmax_cross_entropy_loss_internal_grad(
        dy,
        log_prob,
        label,
        weight,
        ignore_index,
        reduction=reduction,
        output_type=None,
        check=check,
    )


@quiet
def softmax_cross_entropy_loss_internal_grad(
    dy: HostArray,
    log_prob: HostArray,
    label: HostArray,
    weight: HostArray | None = None,
    ignore_index: int | None = None,
    bias: HostArray | None = None,
    *,
    reduction: str,
    output_type: Dtype | None,
    check: bool,  # noqa: ARG001
) -> HostArray:
    """Return the scores' gradient from dy, that of the loss, plus a bias, in output_type.

    log_prob, bias: (N, C, ...). label: (N, ...), classes or ignore_index. weight: (C,). reduction:
    of the loss, "mean", "sum" or "none".
    """
    rows = _Rows.of_classes(label, log_prob.shape[1], ignore_index, weight)
    return rows.gradient(dy, log_prob, 1, reduction, bias, output_type or log_prob.dtype)


@quiet
def cross_entropy_loss_and_grad(
    scores: HostArray,
    labels: HostArray,
    weights: HostArray | None = None,
    ignore_index: int | None = None,
    loss_scale: HostArray | float | None = None,
    *,
    reduction: str,
    output_type: Dtype | None,
    check: bool,  # noqa: ARG001
    label_smoothing: float,
    lse_square_scale: float,
    softcap: float,
) -> _Pair:
    """Return the loss of scores (N, C, ...) against labels (N, ...), and the scores' gradient.

    weights: of the C classes. ignore_index: the label of rows that do not count. The gradient is
    that of loss_scale times the loss; output_type is the loss's.
    """
    rows = _Rows.of_classes(labels, scores.shape[1], ignore_index, weights)
    slope = np.full(labels.shape if reduction == "none" else (), number(loss_scale))
    out = output_type or scores.dtype
    terms = label_smoothing, lse_square_scale, softcap
    if not any(terms):
        return rows.loss_and_gradient(slope, scores, 1, reduction, out)
    smoothed = weights if label_smoothing else None
    loss, gradient, _, _ = rows.regularized(slope, scores, smoothed, reduction, out, *terms)
    return loss, gradient


@quiet
def measured_cross_entropy_loss_and_grad(
    scores: HostArray,
    labels: HostArray,
    weights: HostArray | None = None,
    ignore_index: int | None = None,
    loss_scale: HostArray | float | None = None,
    *,
    reduction: str,
    output_type: Dtype | None,
    check: bool,  # noqa: ARG001
    label_smoothing: float,
    lse_square_scale: float,
    softcap: float,
) -> tuple[HostArray, ...]:
    """Return loss and gradient of the scores (N, C, ...), and z_loss and predicted classes.

    labels: (N, ...), classes or ignore_index. weights: of the C classes. The gradient is that of
    loss_scale times the loss; output_type is the loss's. z_loss: the part of the loss that
    lse_square_scale adds. predicted: the first class with the largest score, -1 in ignored rows and
    where softmax is NaN.
    """
    rows = _Rows.of_classes(labels, scores.shape[1], ignore_index, weights)
    slope = np.full(labels.shape if reduction == "none" else (), number(loss_scale))
    terms = label_smoothing, lse_square_scale, softcap
    smoothed = weights if label_smoothing else None
    return rows.regularized(slope, scores, smoothed, reduction, output_type or scores.dtype, *terms)


@quiet
def dense_cross_entropy_loss_and_grad(
    scores: HostArray,
    target: HostArray,
    weights: HostArray | None = None,
    row_weights: HostArray | None = None,
    loss_scale: HostArray | float | None = None,
    *,
    reduction: str,
    output_type: Dtype | None,
    label_smoothing: float,
    lse_square_scale: float,
    softcap: float,
) -> tuple[HostArray, ...]:
    """Return the loss of scores (N, C, ...) against probabilities, their gradient and target's.

    target: (N, C, ...). weights: of the C classes. row_weights: (N, ...). loss_scale: factor of
    both gradients. shares: the smoothed target times weights of classes; each: these as (1, C, 1).
    """
    flat, n_classes = _flat(scores), max(scores.shape[1], 1)
    each = np.ones((1, 1, 1)) if weights is None else _wide(weights).reshape(1, -1, 1)
    shares = each * ((1 - label_smoothing) * _flat(target) + label_smoothing / n_classes)
    line = _CappedLines(flat, softcap)
    losses, squares, gradient = line.against(shares, lse_square_scale)
    rows = (scores.shape[0], *scores.shape[2:])
    factors = np.ones(rows) if row_weights is None else _wide(row_weights)
    losses = np.where(
        factors == 0, 0, factors * in_range(losses + squares, scores.dtype).reshape(rows)
    )
    divisor = max(losses.size, 1) if reduction == "mean" else 1
    slopes = (factors * number(loss_scale) / divisor).reshape(line.lse.shape)
    skips = factors.reshape(line.lse.shape) == 0
    of_log = np.broadcast_to(-(1 - label_smoothing) * each, flat.shape)
    of_target = np.where(of_log == 0, 0, of_log * line.log_prob * slopes)
    gradients = (np.where(skips, 0, x) for x in (gradient * slopes, of_target))
    of_scores, of_target = (x.reshape(scores.shape) for x in gradients)
    loss = losses if reduction == "none" else np.asarray(losses.sum() / divisor)
    out = output_type or scores.dtype
    return cast(loss, out), cast(of_scores, scores.dtype), cast(of_target, target.dtype)


def _flat(x: HostArray) -> HostArray:
    """Return (N, C, ...) in float64 as (N, C, M)."""
    return _wide(x).reshape((*x.shape[:2], math.prod(x.shape[2:])))


class _CappedLines:
    """Capped scores (N, C, M) in float64, with lse = ln(sum of e^scores over C) and log_prob.

    cap_slope: the derivative of the cap, softcap tanh(scores / softcap).
    """

    def __init__(self, scores: HostArray, softcap: float) -> None:
        """Cap the scores at softcap (0: no cap), and take their softmax's logarithm."""
        self.scores, self.cap_slope = scores, np.ones(())
        if softcap:
            is_masked = np.isneginf(scores)
            relative = np.tanh(scores / softcap)
            self.scores = np.where(is_masked, -np.inf, softcap * relative)
            self.cap_slope = np.where(is_masked, 0, (1 - relative) * (1 + relative))
        largest = self.scores.max(1, keepdims=True, initial=-np.inf)
        self.lse = largest + np.log(np.exp(self.scores - largest).sum(1, keepdims=True))
        self.log_prob = self.scores - self.lse

    def against(self, shares: HostArray, square: Any) -> tuple[HostArray, HostArray, HostArray]:
        """Return losses -sum(shares log_prob), square lse^2, and the gradient of their sum.

        shares: the probability that is wanted of each class, (N, C, M). square: lse_square_scale,
        one number or (N, 1, M). The former two are (N, 1, M), the gradient, by the uncapped scores,
        (N, C, M).
        """
        losses = -np.where(shares == 0, 0, shares * self.log_prob).sum(1, keepdims=True)
        squares = np.where(square == 0, 0, square * self.lse**2)
        growth = shares.sum(1, keepdims=True) + np.where(square == 0, 0, 2 * square * self.lse)
        gradient = (np.exp(self.log_prob) * growth - shares) * self.cap_slope
        return losses, squares, gradient

    def predicted(self) -> HostArray:
        """Return the first class with the largest score, -1 where softmax is NaN."""
        if not self.scores.shape[1]:
            return np.full(self.lse.shape, -1)
        is_number = ~np.isnan(self.lse)
        return np.where(is_number, self.scores.argmax(1, keepdims=True), -1)


class _Rows:
    """The labels and weights of all rows. Arrays of the labels' shape, but for `special`:

    outside   labels that are out of range
    known     labels that are neither that nor ignored
    classes   labels where known, else 0
    weights   of rows: the caller's or 1 where known, 0 where ignored, 1 where outside
    special   flat: rows whose gradient is 0 or NaN whatever it would be; empty if there are none
    """

    def __init__(
        self,
        labels: HostArray,
        n_classes: int,
        ignore_index: int | None,
        weights: HostArray | None,  # of rows
    ) -> None:
        """Sort labels into classes 0 to n_classes - 1, ignore_index, and those out of range."""
        ignored = np.zeros_like(labels, bool) if ignore_index is None else labels == ignore_index
        self.outside = ~ignored & ((labels < 0) | (labels >= n_classes))
        self.known = ~ignored & ~self.outside
        self.classes = np.where(self.known, labels, 0).astype(np.int64)
        self.special = np.zeros(0, bool)
        each = 1.0 if weights is None else _wide(weights)
        self.weights = np.where(self.known, each, self.outside)

    @classmethod
    def of_classes(
        cls,
        labels: HostArray,
        n_classes: int,
        ignore_index: int | None,
        weights: HostArray | None,
    ) -> _Rows:
        """Make the rows with `weights` of classes, in place of one for each row.

        n_classes: labels are from 0 to n_classes - 1, or ignore_index, which does not count.
        """
        rows = cls(labels, n_classes, ignore_index, None)
        if weights is not None and weights.size:
            rows.weights = np.where(rows.known, _wide(weights)[rows.classes], rows.weights)
        return rows

    @quiet
    def forward(self, scores: HostArray, axis: int, reduction: str, out: Dtype) -> _Pair:
        """Return loss and log-probabilities, in dtype `out`; axis: of the classes, 1 or -1.

        reduction: "mean", "sum" or "none".
        """
        kind = FLOAT64 if out == FLOAT64 else working_type(scores)
        log_prob, own = np.empty(scores.shape, out), []
        lines = self._lines(axis, scores, log_prob)
        for classes, _, (of_scores, of_log_prob) in lines:
            logs = log_of_lines(of_scores, of_log_prob, kind)
            own.append(_pick(logs, classes))
            put(of_log_prob, logs)
        return self._loss(own, scores.dtype, reduction, out), log_prob

    @quiet
    def gradient(
        self,
        dy: HostArray,
        log_prob: HostArray,
        axis: int,
        reduction: str,
        bias: HostArray | None,
        out: Dtype,
    ) -> HostArray:
        """Return the scores' gradient from dy, that of the loss, plus a bias, in dtype `out`.

        axis: of the classes in log_prob, 1 or -1. reduction: the loss's.
        """
        kind = FLOAT64 if out == FLOAT64 else working_type(log_prob)
        gradient = np.empty(log_prob.shape, out)
        lines = self._lines(axis, log_prob, gradient, *([] if bias is None else [bias]))
        scale = self._scale(dy, reduction)
        for classes, places, (logs, of_gradient, *of_bias) in lines:
            result = place_for(of_gradient, kind)
            np.exp(logs.astype(kind, copy=False), out=result)
            _subtract_label(result, classes)
            self._scaled(result, scale, places)
            for each in of_bias:
                result += each.astype(kind, copy=False)
            put(of_gradient, result)
        return gradient

    @quiet
    def loss_and_gradient(
        self, dy: HostArray, scores: HostArray, axis: int, reduction: str, out: Dtype
    ) -> _Pair:
        """Return the loss in dtype `out` and the scores' gradient, from one softmax.

        dy: the gradient of the loss. axis: of the classes, 1 or -1. reduction: of the loss.
        """
        gradient, own = np.empty(scores.shape, scores.dtype), []
        scale = self._scale(dy, reduction)
        kind = FLOAT64 if out == FLOAT64 else working_type(scores)
        for classes, places, (of_scores, of_gradient) in self._lines(axis, scores, gradient):
            result = below_zero(of_scores, of_gradient, kind)
            picked = _pick(result, classes)
            np.exp(result, out=result)
            sums = line_sums(result)
            own.append(picked - np.log(sums).reshape(picked.shape))
            result *= 1 / sums
            _subtract_label(result, classes)
            self._scaled(result, scale, places)
            put(of_gradient, result)
        return self._loss(own, scores.dtype, reduction, out), gradient

    def regularized(
        self,
        dy: HostArray,
        scores: HostArray,
        class_weights: HostArray | None,
        reduction: str,
        out: Dtype,
        label_smoothing: float,
        lse_square_scale: float,
        softcap: float,
    ) -> tuple[HostArray, ...]:
        """Return loss, gradient, z-loss and predicted classes, computed in float64.

        dy: the gradient of the loss. scores: (N, C, ...). class_weights: where labels are smoothed
        with weights of classes, these are multiplied to the shares of classes, and rows then have
        weight 1. out: dtype of loss and z-loss. The last three: attributes of the operator.
        """
        line, n_classes = _CappedLines(_flat(scores), softcap), max(scores.shape[1], 1)
        shares = np.full(line.scores.shape, label_smoothing / n_classes)
        classes, shape = self.classes.reshape(line.lse.shape), self.weights.shape
        if scores.shape[1]:
            shares[_places(classes)] += 1 - label_smoothing
        of_row, square = self.weights, np.full(line.lse.shape, lse_square_scale)
        if class_weights is not None:
            shares *= _wide(class_weights).reshape(1, -1, 1)
            square = square * self.weights.reshape(line.lse.shape)
            of_row = np.where(self.known | self.outside, 1.0, 0.0)
        losses, squares, gradient = line.against(shares, square)
        self._scaled(gradient, self._scale(dy, reduction, of_row), slice(None))
        gradient = cast(gradient.reshape(scores.shape), scores.dtype)
        loss, z_loss = (
            self._reduced(in_range(x.reshape(shape), scores.dtype), reduction, out, of_row)
            for x in (losses + squares, squares)
        )
        is_ignored = ~self.known & ~self.outside
        return loss, gradient, z_loss, np.where(is_ignored, -1, line.predicted().reshape(shape))

    def _lines(
        self, axis: int, *arrays: HostArray
    ) -> Iterator[tuple[HostArray, slice, tuple[HostArray, ...]]]:
        """Yield some rows at a time: (classes, slice of flat rows, views of the arrays).

        Views are as `pieces` has them, classes are of their shape with one element along axis 1.
        """
        classes, start = self.classes.reshape(-1), 0
        for some in pieces(axis, *arrays):
            shape = some[0].shape
            rows = slice(start, start + shape[0] * math.prod(shape[2:]))
            start = rows.stop
            yield classes[rows].reshape(shape[0], 1, *shape[2:]), rows, some

    def _loss(self, own: list[HostArray], dtype: Dtype, reduction: str, out: Dtype) -> HostArray:
        """Return the reduced loss; own: log-probabilities of the rows' labels, piece by piece."""
        logs = np.concatenate([each.ravel() for each in own]) if own else np.zeros(0)
        losses = in_range(-_wide(logs.reshape(self.weights.shape)), dtype)
        return self._reduced(losses, reduction, out, self.weights)

    def _reduced(
        self, losses: HostArray, reduction: str, out: Dtype, of_row: HostArray
    ) -> HostArray:
        """Return losses of rows times their weights, reduced, in dtype `out`.

        of_row: the weights; with 0 a loss is 0, whatever it was. reduction: "mean", "sum" or
        "none".
        """
        losses = np.where(of_row == 0, 0, of_row * losses)
        losses = np.where(self.outside, np.nan, losses)
        return cast(_reduce(losses, self.weights, reduction), out)

    def _scale(self, dy: HostArray, reduction: str, of_row: HostArray | None = None) -> HostArray:
        """Return dy of_row / divisor of the rows, flat, or one number if all are the same.

        dy: the loss's gradient. of_row: the rows' weights by default. The divisor is their sum for
        the "mean", else 1. Sets `special` where some are to be 0 or NaN.
        """
        of_row = self.weights if of_row is None else of_row
        divisor = self.weights.sum() if reduction == "mean" else 1.0
        scale = _slope(dy, self.weights.shape, reduction) * of_row / divisor
        zero = (of_row == 0) | (divisor == 0)
        if not (zero | self.outside).any() and (scale.ravel() == scale.ravel()[:1]).all():
            return scale.ravel()[:1]  # a number is faster than one for each line
        self.special = (zero | self.outside).reshape(-1)
        return np.where(self.outside, np.nan, np.where(zero, 0, scale)).reshape(-1)

    def _scaled(self, gradient: HostArray, scale: HostArray, rows: slice) -> None:
        """Multiply rows of a gradient, in place, by scale[rows]; special ones become 0 or NaN."""
        if not gradient.size:
            return  # `scale` has no number of no rows
        if not self.special.size:
            gradient *= scale.astype(gradient.dtype)
            return
        shape = (gradient.shape[0], 1, *gradient.shape[2:])
        of_lines = scale[rows].astype(gradient.dtype).reshape(shape)
        gradient *= of_lines
        np.copyto(gradient, of_lines, where=self.special[rows].reshape(shape))


def _pick(lines: HostArray, classes: HostArray) -> HostArray:
    """Return the element of each line at its class, or 0 where lines are empty."""
    if lines.shape[1] == 0:
        return np.zeros(classes.shape)
    return np.asarray(lines[_places(classes)])


def _subtract_label(lines: HostArray, classes: HostArray) -> None:
    """Subtract 1 from the element of each line at its class, in place."""
    if lines.shape[1]:
        lines[_places(classes)] -= 1


def _places(classes: HostArray) -> tuple[HostArray, ...]:
    """Return the index, for lines along axis 1, of each line's element at its class.

    classes: (n, 1) or (outer, 1, inner), for lines of (n, C) or (outer, C, inner).
    """
    if classes.ndim == 2:
        return np.arange(len(classes))[:, None], classes
    outer, inner = np.ogrid[: len(classes), : classes.shape[2]]
    return outer[:, None], classes, inner[:, None]


def _wide(x: HostArray) -> HostArray:
    return x.astype(FLOAT64)


def _reduce(losses: HostArray, weights: HostArray, reduction: str) -> HostArray:
    """Return weighted losses, their sum or mean; a mean of weights that sum to 0 is 0."""
    if reduction == "none":
        return losses
    divisor = weights.sum() if reduction == "mean" else 1.0
    return np.asarray(losses.sum() / divisor if divisor != 0 else 0.0)


def _slope(dy: HostArray, shape: tuple[int, ...], reduction: str) -> HostArray:
    """Return the gradient of each row's loss, in float64: dy, repeated where losses are reduced."""
    return _wide(dy) if reduction == "none" else np.full(shape, _wide(dy).ravel()[0])
