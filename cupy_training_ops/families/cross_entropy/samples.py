# SPDX-License-Identifier: MIT
"""Sample inputs of cross-entropy losses and their gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATS, INT64, dtype_name, to_dtype
from ...samples import Generator, Sample, Shape
from ..softmax.reference import log_softmax
from ..softmax.samples import logits

NAN, INF = np.nan, np.inf
INT32 = to_dtype("int32")
REDUCTIONS = ("mean", "sum", "none")
FAR = 2**40

# Shapes of scores (N, C, ...) with the label that is ignored, and an offset. Of 2-D ones the
# operators whose classes come last take them as they are.
CALLS: tuple[tuple[str, Shape, int | None, int], ...] = (
    ("odd", (3, 5, 7), 2, 0),
    ("upstream", (8, 20, 10), None, 0),
    ("four", (2, 37, 3, 5), -100, 0),
    ("deep", (2, 1100, 5), None, 0),
    ("bundles", (2, 11, 16, 17), 3, 0),
    ("empty", (0, 4), None, 0),
    ("empty-classes", (3, 0), 1, 0),
    ("one", (1, 1), None, 0),
    ("misaligned", (3, 1003), 7, 1),
    ("large", (2, 40_007), None, 0),
    ("row-edges", (5, 1025), 0, 0),
    ("rows", (3, 1500), None, 0),
    ("many-rows", (4500, 8), 3, 0),
)
# T, TOut
TYPES = (
    *((t, t) for t in FLOATS),
    *((FLOAT32, t) for t in (FLOAT16, BFLOAT16)),
    *((t, FLOAT32) for t in (FLOAT16, BFLOAT16)),
)


# Attributes of losses with other terms than the cross-entropy.
TERMS: tuple[dict[str, float], ...] = (
    {"label_smoothing": 0.1},
    {"label_smoothing": 1.0},
    {"lse_square_scale": 1e-2},
    {"softcap": 2.5},
    {"label_smoothing": 0.3, "lse_square_scale": 1e-3, "softcap": 30.0},
)


@dataclass(frozen=True)
class Form:
    """An operator, and which inputs it takes."""

    name: str
    classes_last: bool = False  # classes are the last axis, not the second
    gradient: bool = False  # takes dY and log_prob, not scores
    dense: bool = False  # targets are distributions
    ignore_input: bool = False  # ignore_index is an input, not an attribute
    has_ignore: bool = True  # there is an ignore_index


BOTH = "CrossEntropyLossAndGrad", "MeasuredCrossEntropyLossAndGrad"
FORMS = (
    Form("CrossEntropyLossAndGrad", ignore_input=True),
    Form("DenseCrossEntropyLossAndGrad", dense=True),
    Form("MeasuredCrossEntropyLossAndGrad", ignore_input=True),
    Form("SoftmaxCrossEntropy", classes_last=True, dense=True),
    Form("SoftmaxCrossEntropyGrad", classes_last=True, dense=True, gradient=True),
    Form("SoftmaxCrossEntropyLoss"),
    Form("SoftmaxCrossEntropyLossGrad", gradient=True),
    Form("SoftmaxCrossEntropyLossInternal", ignore_input=True),
    Form("SoftmaxCrossEntropyLossInternalGrad", ignore_input=True, gradient=True),
    Form("SparseSoftmaxCrossEntropy", classes_last=True, has_ignore=False),
    Form("SparseSoftmaxCrossEntropyGrad", classes_last=True, has_ignore=False, gradient=True),
)


def labels_of(rng: Generator, shape: Shape, n_classes: int, dtype: Any) -> Any:
    """Return labels from 0 to n_classes - 1; zeros where there are no classes."""
    return rng.integers(0, max(n_classes, 1), shape).astype(dtype)


@dataclass(frozen=True)
class Call:
    """One call of a form: shapes, types, and what labels and weights have in them."""

    form: Form
    shape: Shape  # of scores with classes second
    t: Any = FLOAT32  # type of the scores
    t_out: Any = None  # output_type
    label: Any = INT64  # type of the labels
    reduction: str = "mean"
    weighted: bool = False  # weights are passed, and a loss_scale where there is one
    ignore: int | None = None  # ignore_index
    bias: bool = False  # where the form has one, it is passed
    special: bool = False  # labels out of range, and inf and NaN among the scores
    terms: tuple[tuple[str, float], ...] = ()  # attributes that have other terms in the loss
    t_target: Any = None  # of probabilities beside their gradients

    @property
    def scores_shape(self) -> Shape:
        """Return the shape of the scores: classes second, or last."""
        n, c, *rest = self.shape
        return (n, *rest, c) if self.form.classes_last else self.shape

    @property
    def rows(self) -> Shape:
        """Return the shape of the labels."""
        return (self.shape[0], *self.shape[2:])

    @property
    def attributes(self) -> dict[str, Any]:
        """Return the operator's attributes by name."""
        values: dict[str, Any] = {"reduction": self.reduction, **dict(self.terms)}
        if self.form.has_ignore and not self.form.ignore_input and not self.form.dense:
            values["ignore_index"] = self.ignore
        if self.t_out is not None:
            values["output_type"] = self.t_out
        return values

    def make(self, rng: Generator) -> tuple[Any, ...]:
        """Return the inputs of the operator, in their order, None for those left out."""
        scores = logits(rng, self.scores_shape, self.t)
        if self.special:
            self._make_special(rng, scores)
        first = self._first(rng, scores)
        if self.form.name == "DenseCrossEntropyLossAndGrad":
            return self._dense_inputs(rng, scores)
        if self.form.dense:
            return *first, self._distribution(rng)
        inputs = [*first, self._labels(rng), self._weights(rng)]
        if self.form.ignore_input:
            inputs.append(self.ignore)
        if self.form.name in BOTH:
            inputs.append(np.array([64.0], np.float32) if self.weighted else None)
        if self.form.name.endswith("InternalGrad") and self.bias:
            inputs.append(logits(rng, self.scores_shape, self.t_out or self.t))
        return tuple(inputs)

    def _dense_inputs(self, rng: Generator, scores: Any) -> tuple[Any, ...]:
        """Return scores, probabilities, weights of classes and rows (some 0), and a scale."""
        target = self._distribution(rng, self.t_target or self.t)
        if not self.weighted:
            return scores, target, None, None, None
        of_rows = rng.uniform(0, 2, self.rows).astype(FLOAT64 if self.t == FLOAT64 else FLOAT32)
        of_rows.reshape(-1)[::3] = 0
        return scores, target, self._weights(rng), of_rows, np.array([64.0], np.float32)

    def _first(self, rng: Generator, scores: Any) -> tuple[Any, ...]:
        """Return (scores,), or (dY, log-probabilities) of a gradient."""
        if not self.form.gradient:
            return (scores,)
        shape = self.rows if self.reduction == "none" else ()
        axis = -1 if self.form.classes_last else 1
        with np.errstate(all="ignore"):
            log_prob = log_softmax(scores.astype(FLOAT64), axis=axis).astype(self.t)
        return logits(rng, shape, self.t), log_prob

    def _make_special(self, rng: Generator, scores: Any) -> None:
        """Put special scores into rows of a 2-D array: -inf, all -inf, inf, NaN, huge.

        The label of row 9 has a score of -inf.
        """
        scores[0, 1] = scores[9, 2] = -INF
        scores[1] = -INF
        scores[2, 3], scores[3, 4] = INF, NAN
        scores[4] = rng.choice([-1e4, 1e4], scores.shape[1]).astype(scores.dtype)

    def _labels(self, rng: Generator) -> Any:
        """Return labels, some of them ignored; if `special`, four of them are out of range."""
        labels = labels_of(rng, self.rows, self.shape[1], self.label)
        if self.special:
            c, far = self.shape[1], FAR if self.label == INT64 else 2**31 - 1
            labels[5:10] = (-1, c, c + 5, far, 2)
            if self.ignore is not None:
                labels[1:4] = self.ignore
        elif self.ignore is not None and labels.size:
            labels.reshape(-1)[:: 1 + labels.size // 3] = self.ignore
        return labels

    def _weights(self, rng: Generator) -> Any:
        """Return weights of rows or classes, or None; one is 0, that of the ignored class inf."""
        if not self.weighted:
            return None
        by_row = self.form.classes_last
        weights = rng.uniform(0, 2, self.rows if by_row else self.shape[1:2])
        if weights.size:
            weights.reshape(-1)[0] = 0
        if self.ignore is not None and 0 <= self.ignore < self.shape[1] and not by_row:
            weights[self.ignore] = INF
        use_out = self.t_out is not None and self.reduction == "sum"
        return weights.astype(self.t_out if use_out else self.t)

    def _distribution(self, rng: Generator, dtype: Any = None) -> Any:
        """Return distributions of the shape of the scores: rows that sum to 1, with some zeros.

        dtype: None: that of the scores.
        """
        target = rng.uniform(0, 1, self.scores_shape) * (rng.random(self.scores_shape) < 0.5)
        total = target.sum(-1 if self.form.classes_last else 1, keepdims=True)
        return (target / np.where(total == 0, 1, total)).astype(dtype or self.t)


def _sample(label: str, call: Call, offset: int = 0) -> Sample:
    """Return the sample of a call; offset: elements that its arrays start off alignment."""
    types = [call.t, *([call.t_out] if call.t_out is not None else [])]
    words = [dtype_name(t) for t in types] + [label]
    return Sample(call.form.name, "-".join(words), call.make, call.attributes, offset)


def _samples(form: Form, number: int) -> Iterator[Sample]:
    """Yield the samples of a form; number: its place, which picks types for each shape."""
    for i, (label, shape, ignore, offset) in enumerate(CALLS):
        used = ignore if form.has_ignore and not form.dense else None
        for j in (0, 1):
            t, k = FLOATS[(i + number + j) % 4], (i + j + number) % 3
            index = (INT64, INT32)[(i + j) % 2]
            call = Call(form, shape, t, None, index, REDUCTIONS[k], bool((i + j) % 2), used)
            yield _sample(label, call, offset)
    for i, t in enumerate(FLOATS):
        yield _sample("ordinary", Call(form, (16, 64), t, reduction=REDUCTIONS[i % 3]))
    if not form.dense:
        yield from _special_samples(form)
    if "Internal" in form.name or form.name in BOTH:
        yield from _typed_samples(form)
    if form.name in BOTH:
        yield from _regularized_samples(form)
    if form.name == "DenseCrossEntropyLossAndGrad":
        yield from _probability_samples(form)


def _special_samples(form: Form) -> Iterator[Sample]:
    """Yield samples with labels out of range, and inf and NaN in rows that do not count."""
    for reduction, ignore in itertools.product(REDUCTIONS, (None, 3)):
        if ignore is not None and not form.has_ignore:
            continue
        call = Call(form, (11, 67), FLOAT32, None, INT64, reduction, True, ignore, special=True)
        yield _sample(f"special-{reduction}-{ignore}", call)


def _typed_samples(form: Form) -> Iterator[Sample]:
    """Yield samples of every combination of types, weights of either type, and a bias."""
    for i, (t, t_out) in enumerate(TYPES):
        for shape, weighted in (((6, 133), i % 2 == 0), ((2, 9, 70), i % 2 == 1)):
            reduction = REDUCTIONS[(i + weighted) % 3]
            call = Call(form, shape, t, t_out, (INT64, INT32)[i % 2], reduction, weighted, 5, True)
            yield _sample(f"typed-{len(shape)}", call)


def _regularized_samples(form: Form) -> Iterator[Sample]:
    """Yield samples of a form with smoothed labels, z-loss and capped scores, alone and together.

    form: an operator, and which of the optional inputs and attributes it has.
    """
    for i, terms in enumerate(TERMS):
        for j, (label, shape, ignore, offset) in enumerate(CALLS):
            if (i + j) % 3:
                continue
            t, t_out = TYPES[(i + j) % len(TYPES)]
            weighted = bool(j % 2)
            reduction, named = REDUCTIONS[(i + j // 3) % 3], tuple(terms.items())
            call = Call(form, shape, t, t_out, INT64, reduction, weighted, ignore, terms=named)
            yield _sample(f"regularized-{i}-{label}", call, offset)
        named = tuple(terms.items())
        special = Call(form, (11, 67), reduction="none", ignore=3, special=True, terms=named)
        yield _sample(f"regularized-{i}-special", special)


def _probability_samples(form: Form) -> Iterator[Sample]:
    """Yield samples of `form`, the operator that takes probabilities for targets.

    Types of scores, targets and outputs, then smoothing, a z-loss and caps.
    """
    types = (
        *((t, t, t) for t in FLOATS),
        *((t, t, FLOAT32) for t in (FLOAT16, BFLOAT16)),
        *((t, FLOAT32, FLOAT32) for t in (FLOAT16, BFLOAT16)),
    )
    for i, terms in enumerate(TERMS):
        for j, (label, shape, _, offset) in enumerate(CALLS):
            if (i + j) % 3:
                continue
            t, t_target, t_out = types[(2 * i + j) % len(types)]
            reduction, named = REDUCTIONS[(i + j // 3) % 3], tuple(terms.items())
            call = Call(form, shape, t, t_out, reduction=reduction, weighted=bool(j % 2))
            call = replace(call, terms=named, t_target=t_target)
            yield _sample(f"probabilities-{i}-{label}", call, offset)


SAMPLES = {form.name: tuple(_samples(form, i)) for i, form in enumerate(FORMS)}
