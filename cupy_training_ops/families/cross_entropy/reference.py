# SPDX-License-Identifier: MIT
"""Cross-entropy losses and their gradients in NumPy. Formulas: `operators.py`.

Everything is computed in float64 and rounded once. `check` says only what a call refuses.
"""

from __future__ import annotations

import numpy as np

from ...dtypes import FLOAT64, Dtype, HostArray
from ...rules.widening import cast, in_range, quiet

_Pair = tuple[HostArray, HostArray]


# ---- targets that are distributions --------------------------------------------------------------


@quiet
def softmax_cross_entropy(logits: HostArray, label: HostArray, *, reduction: str) -> _Pair:
    log_prob, target = _log_softmax(_wide(logits), -1), _wide(label)
    losses = in_range(-np.where(target == 0, 0, target * log_prob).sum(-1), logits.dtype)
    loss = _reduce(losses, np.ones(losses.shape), reduction)
    return cast(loss, logits.dtype), cast(log_prob, logits.dtype)


@quiet
def softmax_cross_entropy_grad(
    dy: HostArray, log_prob: HostArray, label: HostArray, *, reduction: str
) -> HostArray:
    count = np.prod(log_prob.shape[:-1]) if reduction == "mean" else 1
    scale = _slope(dy, log_prob.shape[:-1], reduction) / count
    gradient = (np.exp(_wide(log_prob)) - _wide(label)) * scale[..., None]
    return cast(gradient, log_prob.dtype)


# ---- targets that are classes --------------------------------------------------------------------


def sparse_softmax_cross_entropy(
    logits: HostArray,
    label: HostArray,
    weight: HostArray | None = None,
    *,
    reduction: str,
    check: bool,  # noqa: ARG001
) -> _Pair:
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
    rows = _Rows(label, log_prob.shape[-1], None, weight)
    return rows.gradient(dy, np.exp(_wide(log_prob)), -1, reduction, None, log_prob.dtype)


def softmax_cross_entropy_loss(
    scores: HostArray,
    labels: HostArray,
    weights: HostArray | None = None,
    *,
    reduction: str,
    ignore_index: int | None,
    check: bool,  # noqa: ARG001
) -> _Pair:
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
    rows = _Rows.of_classes(label, log_prob.shape[1], ignore_index, weight)
    softmax = np.exp(_wide(log_prob))
    return rows.gradient(dy, softmax, 1, reduction, bias, output_type or log_prob.dtype)


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
    rows = _Rows.of_classes(labels, scores.shape[1], ignore_index, weights)
    capped = _wide(scores)
    cap_slope = np.ones(())
    if softcap:
        is_masked = np.isneginf(capped)
        relative = np.tanh(capped / softcap)
        capped = np.where(is_masked, -np.inf, softcap * relative)
        cap_slope = np.where(is_masked, 0, (1 - relative) * (1 + relative))
    log_prob = _log_softmax(capped, 1)
    losses = -(1 - label_smoothing) * rows.pick(log_prob, 1)
    if label_smoothing:
        losses -= label_smoothing * log_prob.sum(1) / max(scores.shape[1], 1)
    lse = np.zeros(())
    if lse_square_scale:
        largest = capped.max(1, initial=-np.inf)
        lse = largest + np.log(np.exp(capped - np.expand_dims(largest, 1)).sum(1))
        losses += lse_square_scale * lse**2
    loss = rows.loss(in_range(losses, scores.dtype), reduction)
    scale = 1.0 if loss_scale is None else float(np.ravel(loss_scale)[0])
    slope = np.full(labels.shape if reduction == "none" else (), scale)
    grown = np.exp(log_prob) * np.expand_dims(1 + 2 * lse_square_scale * lse, 1 if lse.ndim else ())
    softmax = grown - label_smoothing / max(scores.shape[1], 1)
    of_label = 1 - label_smoothing
    gradient = rows.gradient(slope, softmax, 1, reduction, None, scores.dtype, of_label, cap_slope)
    return cast(loss, output_type or scores.dtype), gradient


class _Rows:
    """Labels that are ignored or out of range, and weights, of all rows."""

    def __init__(
        self,
        labels: HostArray,
        n_classes: int,
        ignore_index: int | None,
        weights: HostArray | None,  # of rows
    ) -> None:
        ignored = np.zeros_like(labels, bool) if ignore_index is None else labels == ignore_index
        self.outside = ~ignored & ((labels < 0) | (labels >= n_classes))
        self.known = ~ignored & ~self.outside
        self.classes = np.where(self.known, labels, 0).astype(np.int64)
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
        """With a weight for each class."""
        rows = cls(labels, n_classes, ignore_index, None)
        if weights is not None and weights.size:
            rows.weights = np.where(rows.known, _wide(weights)[rows.classes], rows.weights)
        return rows

    @quiet
    def forward(self, scores: HostArray, axis: int, reduction: str, out: Dtype) -> _Pair:
        """Loss and log-probabilities."""
        log_prob = _log_softmax(_wide(scores), axis)
        own = in_range(-self.pick(log_prob, axis), scores.dtype)
        return cast(self.loss(own, reduction), out), cast(log_prob, out)

    @quiet
    def loss(self, losses: HostArray, reduction: str) -> HostArray:
        """Reduce unweighted losses of rows."""
        weighted = np.where(self.weights == 0, 0, self.weights * losses)
        weighted = np.where(self.outside, np.nan, weighted)
        return _reduce(weighted, self.weights, reduction)

    @quiet
    def gradient(
        self,
        dy: HostArray,
        softmax: HostArray,
        axis: int,
        reduction: str,
        bias: HostArray | None,
        out: Dtype,
        of_label: float = 1.0,
        cap_slope: HostArray | float = 1.0,
    ) -> HostArray:
        """Gradient of the scores, from that of the loss.

        of_label: the target of the label's class. cap_slope: multiplies each element.
        """
        divisor = self.weights.sum() if reduction == "mean" else 1.0
        scale = _slope(dy, self.weights.shape, reduction) * self.weights / divisor
        zero = np.expand_dims((self.weights == 0) | (divisor == 0), axis)
        is_label = np.arange(softmax.shape[axis]) == self.classes[..., None]
        difference = (softmax - of_label * np.moveaxis(is_label, -1, axis)) * cap_slope
        gradient = np.where(zero, 0, difference * np.expand_dims(scale, axis))
        gradient = np.where(np.expand_dims(self.outside, axis), np.nan, gradient)
        return cast(gradient if bias is None else gradient + _wide(bias), out)

    def pick(self, log_prob: HostArray, axis: int) -> HostArray:
        """The log-probability of each row's label."""
        if log_prob.shape[axis] == 0:
            return np.zeros(self.classes.shape)
        index = np.expand_dims(self.classes, axis)
        return np.take_along_axis(log_prob, index, axis).squeeze(axis)


def _wide(x: HostArray) -> HostArray:
    return x.astype(FLOAT64)


def _log_softmax(x: HostArray, axis: int) -> HostArray:
    shifted = x - x.max(axis, keepdims=True, initial=-np.inf)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis, keepdims=True)))


def _reduce(losses: HostArray, weights: HostArray, reduction: str) -> HostArray:
    """Reduce weighted losses; a mean over nothing, or of weights that sum to 0, is 0."""
    if reduction == "none":
        return losses
    divisor = weights.sum() if reduction == "mean" else 1.0
    return np.asarray(losses.sum() / divisor if divisor != 0 else 0.0)


def _slope(dy: HostArray, shape: tuple[int, ...], reduction: str) -> HostArray:
    """The gradient of each row's loss."""
    return _wide(dy) if reduction == "none" else np.full(shape, _wide(dy).ravel()[0])
