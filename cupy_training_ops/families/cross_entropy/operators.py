# SPDX-License-Identifier: MIT
"""Cross-entropy losses over the logarithm of Softmax, and their gradients.

Losses of rows, each in float32 (float64 for float64) and infinite beyond its range, are weighted
and summed in float64 in a fixed order, divided once and rounded once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from ...call.op import Op
from ...declare.schema import (
    Input,
    Output,
    Shape,
    Spec,
    attribute,
    boolean,
    dtype,
    finite,
    integer,
    one_of,
    optional,
    positive_or_zero,
    real,
    single,
)
from ...declare.type_rows import TypeRows, Types
from ...dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOATS,
    INT64,
    Dtype,
    dtype_name,
    dtype_names,
    to_dtype,
)
from ...errors import ArgumentError, DtypeError, refuse
from ...plan import Device, Plan
from ...planning.lines import Lines
from . import plan as cross_entropy
from .facts import MOST_SMOOTHED
from .plan import Probabilities, Rows, Targets, Terms

LABEL_TYPES = (INT64, to_dtype("int32"))
HALVES = (FLOAT16, BFLOAT16)
# Scores, labels, outputs, weights; these have the type of the scores or of the outputs.
ROWS = TypeRows(
    "T Tind TOut TW",
    "F F F",
    "float32 H float32",
    "float32 H H",
    "H float32 H",
    "H float32 float32",
    free={"Tind": LABEL_TYPES},
    F=FLOATS,
    H=HALVES,
)


def one_integer(value: object) -> int:
    """Return an integer, which may come in an array or a sequence of one element."""
    return integer(single(value))


def share(value: object) -> float:
    """Return an attribute's number; refuse one that is not from 0 to 1."""
    number = real(value)
    if not 0 <= number <= 1:
        raise ArgumentError(f"expected a number from 0 to 1, got {number}")
    return number


IGNORE_ATTRIBUTE = attribute(optional(integer), None, doc="the label of rows that do not count")
OUTPUT_TYPE = attribute(optional(dtype), None, type="TOut", doc="T where it is None")
CHECK = attribute(
    boolean,
    False,
    doc="True refuses labels out of range before any launch, for which the call reads the labels, "
    "waits for the device and cannot be captured in a graph",
)
DENSE_LOSS_SHAPE = "shape (), or for reduction='none' that of scores without C"
LOSS_SHAPE = "shape (), or for reduction='none' the shape of the labels"

SCORES = Input("scores", "T", shape="shape (N, C, ...)")
LABELS = Input("labels", "Tind", shape="shape (N, ...)", doc="from 0 to C - 1")
LABEL = Input("label", "Tind", shape="shape (N, ...)", doc="from 0 to C - 1")
LAST_LABEL = Input(
    "label", "Tind", shape="shape of the scores without classes", doc="from 0 to C - 1"
)
DY = Input("dY", "T", shape="one element, or for reduction='none' the shape of the labels")
LOG_PROB = Input("log_prob", "T", shape="shape (N, C, ...)", doc="taken as it is")
IGNORE = Input(
    "ignore_index",
    "int64",
    memory="host",
    optional=True,
    convert=one_integer,
    doc="the label of rows that do not count",
)

LOSS_SCALE = Input(
    "loss_scale",
    "float32",
    memory="either",
    convert=finite,
    optional=True,
    shape="one element",
    doc="1 where it is left out",
)
SMOOTHING = attribute(share, 0.0, doc="from 0 to 1; not with more than 2^24 classes")
SQUARE_SCALE = attribute(positive_or_zero, 0.0, doc="of the z-loss")
SOFTCAP = attribute(positive_or_zero, 0.0, doc="the bound of scores; 0: none")


class CrossEntropyOp(Op):
    """Base of all: how shapes are checked, and the rows of a call."""

    types: ClassVar[Types] = {"T": FLOATS, "Tind": LABEL_TYPES}
    axis: ClassVar[int] = -1  # of the classes
    reduction = attribute(one_of("mean", "sum", "none"), "mean")
    output_type: Dtype | None = None  # where there is no such attribute

    def rows(self, device: Device, scores: Spec) -> Rows:
        """Return the rows of a call: lines of the scores along the axis of the classes."""
        lines = Lines.along(scores.shape, self.axis % len(scores.shape))
        out = self.output_type or scores.dtype
        return Rows(device, lines, scores.dtype, out, self.reduction)

    def loss(self, labels: Shape, t: Dtype) -> Spec:
        """Return the spec of the loss; labels: their shape."""
        return Spec(labels if self.reduction == "none" else (), t)

    def refuse_unlike(self, name: str, spec: Spec, expected: Shape, like: str) -> None:
        """Refuse the argument `name` of another shape; like: whose shape is expected, in words."""
        if spec.shape != expected:
            refuse(self.name, name, f"shape {expected}, as {like}", f"shape {spec.shape}")

    def check_classes(self, scores: Spec) -> None:
        """Refuse more classes than float32 counts."""
        if scores.shape[1] > MOST_SMOOTHED:
            refuse(self.name, "scores", f"{MOST_SMOOTHED} classes at most", f"{scores.shape[1]}")

    def check_slope(self, dy: Spec, labels: Shape) -> None:
        """Refuse a dY without the loss's shape; of a reduced loss it may have rank 1."""
        if self.reduction == "none":
            self.refuse_unlike("dY", dy, labels, "the labels")
        elif dy.size != 1 or len(dy.shape) > 1:
            refuse(self.name, "dY", f"one element for {self.reduction}", f"shape {dy.shape}")


# ---- targets that are distributions --------------------------------------------------------------


class DenseOp(CrossEntropyOp):
    """Scores and targets of one shape, whose last axis is that of the classes."""

    types: ClassVar[Types] = {"T": FLOATS}

    def checked_rows(self, name: str, scores: Spec, label: Spec) -> Shape:
        """Return the shape of the rows; refuse a scalar and a label of another shape."""
        if not scores.shape:
            refuse(self.name, name, "arrays of at least one dimension", "a scalar")
        self.refuse_unlike("label", label, scores.shape, name)
        return scores.shape[:-1]


class SoftmaxCrossEntropy(DenseOp):
    """Cross-entropy against distributions: loss of a row = -sum of label log_prob over its classes.

    log_prob = (logits - max) - ln(sum of e^(logits - max)). A label of 0 has no part in the loss,
    whatever its log_prob is. The mean is over rows; without rows mean and sum are 0.

    Memory: a workspace of 4 bytes a row (8 for float64) and at most 2 KiB.

    Source: ONNX Runtime,
    orttraining/orttraining/training_ops/cuda/loss/softmaxcrossentropy_impl.cc.
    """

    inputs = (
        Input("logits", "T", shape="rank 1 or more", doc="classes last"),
        Input("label", "T", shape="shape of logits", doc="of each row a distribution"),
    )
    outputs = (
        Output("Y", "T", shape="shape (), or for reduction='none' that of logits without C"),
        Output("log_prob", "T", shape="shape of logits"),
    )

    def infer(self, logits: Spec, label: Spec) -> tuple[Spec, ...]:
        rows = self.checked_rows("logits", logits, label)
        return self.loss(rows, logits.dtype), Spec(logits.shape, logits.dtype)

    def plan(
        self, device: Device, logits: Spec, label: Spec, y: Spec | None, log_prob: Spec | None
    ) -> Plan:
        rows = self.rows(device, logits)
        return cross_entropy.dense_forward(rows, logits, label, y, log_prob)


class SoftmaxCrossEntropyGrad(DenseOp):
    """Gradient of SoftmaxCrossEntropy: d_logits = (e^log_prob - label) dY / N.

    N is the number of rows for the mean, else 1. This is the gradient where every row of labels
    sums to 1; for other rows e^log_prob would have to be multiplied by their sum, and is not.

    Source: ONNX Runtime,
    orttraining/orttraining/training_ops/cuda/loss/softmaxcrossentropy_impl.cc.
    """

    inputs = (
        Input("dY", "T", shape="one element, or for reduction='none' a row's loss each"),
        Input("log_prob", "T", shape="rank 1 or more", doc="classes last; taken as it is"),
        Input("label", "T", shape="shape of log_prob", doc="of each row a distribution"),
    )
    outputs = (Output("d_logits", "T", may_alias=("log_prob", "label"), shape="shape of log_prob"),)

    def infer(self, dy: Spec, log_prob: Spec, label: Spec) -> tuple[Spec, ...]:
        """Return the spec of d_logits; refuse a label or dY that does not fit log_prob."""
        rows = self.checked_rows("log_prob", log_prob, label)
        self.check_slope(dy, rows)
        return (Spec(log_prob.shape, log_prob.dtype),)

    def plan(self, device: Device, dy: Spec, log_prob: Spec, label: Spec, gradient: Spec) -> Plan:
        rows = self.rows(device, log_prob)
        return cross_entropy.dense_backward(rows, dy, log_prob, label, gradient)


# ---- targets that are classes --------------------------------------------------------------------


class SparseOp(CrossEntropyOp):
    """Scores and a label for each of their rows; a weight for each class, or for each row."""

    axis = 1
    n_before: ClassVar[int] = 0  # inputs before the scores
    check = CHECK
    ignore_index: int | None = None

    def ignored_label(self, *inputs: int | None) -> int | None:
        """Return the label that is ignored, or None; inputs: it, where it is an input."""
        return inputs[0] if inputs else self.ignore_index

    def check_shapes(self, scores: Spec, labels: Spec, weights: Spec | None) -> tuple[Shape, Dtype]:
        """Return (shape of the rows, type of the outputs); refuse inputs that do not fit."""
        declared, label, weight = self.inputs[self.n_before : self.n_before + 3]
        rank = len(scores.shape)
        if rank < (2 if self.axis == 1 else 1):
            refuse(self.name, declared.name, declared.shape, f"shape {scores.shape}")
        axis, t_out = self.axis % rank, self.output_type or scores.dtype
        rows = scores.shape[:axis] + scores.shape[axis + 1 :]
        self.refuse_unlike(label.name, labels, rows, f"{declared.name} without classes")
        if weights is not None:
            classes = (scores.shape[axis],)
            expected, like = (classes, "the classes") if self.axis == 1 else (rows, label.name)
            self.refuse_unlike(weight.name, weights, expected, like)
            if weights.dtype not in (scores.dtype, t_out):
                types = dtype_names(dict.fromkeys((scores.dtype, t_out)))
                got = dtype_name(weights.dtype)
                raise DtypeError(f"{self.name}: {weight.name}: expected dtype {types}, got {got}")
        return rows, t_out

    def targets(
        self, scores: Spec, labels: Spec, weights: Spec | None, *ignored: int | None
    ) -> Targets:
        """Return labels with weights; ignored: (ignored label or None,) where it is an input."""
        n_classes, label = scores.shape[self.axis], self.ignored_label(*ignored)
        return Targets(labels, n_classes, weights, label, row_weights=self.axis != 1)

    def check_values(self, *inputs: Any) -> None:
        """Refuse labels out of range that are not ignored; inputs: all of the call's, as arrays."""
        scores, labels, _, *ignored = inputs[self.n_before :]
        n_classes, ignore = scores.shape[self.axis], self.ignored_label(*ignored)
        outside = (labels < 0) | (labels >= n_classes)
        if ignore is not None:
            outside &= labels != ignore
        if bool(outside.any()):
            row = int(outside.ravel().argmax())
            got = f"{int(labels.ravel()[row])} in row {row}"
            name = self.inputs[self.n_before + 1].name
            refuse(self.name, name, f"labels from 0 to {n_classes - 1}", got)


class LossOp(SparseOp):
    """Loss and log-probabilities."""

    outputs = (
        Output("output", "T", shape=LOSS_SHAPE),
        Output("log_prob", "T", shape="shape of scores"),
    )

    def infer(
        self, scores: Spec, labels: Spec, weights: Spec | None, *ignored: int | None
    ) -> tuple[Spec, ...]:
        """Return the specs of output and log_prob; ignored: ignore_index where it is an input."""
        rows, t_out = self.check_shapes(scores, labels, weights)
        return self.loss(rows, t_out), Spec(scores.shape, t_out)

    def plan(
        self, device: Device, scores: Spec, labels: Spec, weights: Spec | None, *others: Any
    ) -> Plan:
        """Plan the call; others: ignore_index where it is an input, then output and log_prob."""
        *ignored, output, log_prob = others
        targets = self.targets(scores, labels, weights, *ignored)
        return cross_entropy.forward(self.rows(device, scores), scores, targets, output, log_prob)


class GradientOp(SparseOp):
    """Gradient of the scores, from that of the loss."""

    n_before = 1
    outputs = (Output("d_logits", "T", may_alias=("log_prob",), shape="shape of log_prob"),)

    def infer(
        self, dy: Spec, log_prob: Spec, label: Spec, weight: Spec | None, *others: Any
    ) -> tuple[Spec, ...]:
        """Return the spec of d_logits; others: (ignored label, bias) if they are declared."""
        rows, t_out = self.check_shapes(log_prob, label, weight)
        self.check_slope(dy, rows)
        if len(others) == 2 and others[1] is not None:
            self.refuse_unlike("bias", others[1], log_prob.shape, "log_prob")
            if others[1].dtype != t_out:
                expected = f"{dtype_name(t_out)}, as d_logits"
                refuse(self.name, "bias", expected, dtype_name(others[1].dtype))
        return (Spec(log_prob.shape, t_out),)

    def plan(
        self, device: Device, dy: Spec, log_prob: Spec, label: Spec, weight: Spec | None, *rest: Any
    ) -> Plan:
        """Plan d_logits from dy, the gradient of the loss, and log_prob, logarithms of softmax.

        rest: (d_logits,), or (ignored label, bias, d_logits) where those inputs are declared.
        """
        *optional_inputs, gradient = rest
        bias = optional_inputs[1] if optional_inputs else None
        targets = self.targets(log_prob, label, weight, *optional_inputs[:1])
        rows = self.rows(device, log_prob)
        return cross_entropy.backward(rows, dy, log_prob, targets, bias, gradient)


class Version9:
    """Base of ONNX's first losses and their gradients: classes are the last axis."""

    domain = "ai.onnx"
    since = 9
    axis = -1


class SparseSoftmaxCrossEntropy(Version9, LossOp):
    """Cross-entropy against classes: loss of a row = -weight log_prob[label].

    log_prob = (logits - max) - ln(sum of e^(logits - max)). The mean divides by the sum of the
    weights, or by the number of rows. A row of weight 0 has loss 0, whatever is in it; a mean of
    no weight is 0. A label out of range makes its row's loss NaN and counts as weight 1.

    Memory: a workspace of 4 bytes a row (8 for float64) and at most 2 KiB.

    Source: ONNX Runtime,
    orttraining/orttraining/training_ops/cuda/loss/softmaxcrossentropy_impl.cc.
    """

    inputs = (
        Input("logits", "T", shape="rank 1 or more", doc="classes last"),
        LAST_LABEL,
        Input("weight", "T", optional=True, shape="shape of label"),
    )
    outputs = (
        Output("Y", "T", formerly=("output",), shape=LOSS_SHAPE),
        Output("log_prob", "T", shape="shape of logits"),
    )


class SparseSoftmaxCrossEntropyGrad(Version9, GradientOp):
    """Gradient of SparseSoftmaxCrossEntropy: d_logits = (e^log_prob - [label]) dY weight / N.

    [label] is 1 at the label, else 0. N is the sum of weights for the mean (the number of rows
    where there are none), else 1. Rows of weight 0 are 0, whatever is in them, and so are all where
    N is 0; in other rows NaN gives NaN, also where dY is 0. A label out of range makes its row NaN.

    Memory: a workspace of at most 2 KiB.

    Source: ONNX Runtime,
    orttraining/orttraining/training_ops/cuda/loss/softmaxcrossentropy_impl.cc.
    """

    inputs = (
        DY,
        Input("log_prob", "T", shape="rank 1 or more", doc="classes last; taken as it is"),
        LAST_LABEL,
        Input("weight", "T", optional=True, shape="shape of label"),
    )


class SoftmaxCrossEntropyLoss13(LossOp):
    """Cross-entropy: loss of a row = -weights[label] log_prob[label].

    log_prob = (scores - max) - ln(sum of e^(scores - max)) along the second axis. The mean divides
    by the sum of the rows' weights, 1 each without weights. Rows whose label is ignore_index, and
    rows of weight 0, have loss 0, whatever is in them; a mean of no weight is 0. Without
    ignore_index no label is ignored. A label out of range makes its row's loss NaN and counts as
    weight 1.

    Memory: a workspace of 4 bytes a row (8 for float64) and at most 2 KiB.

    Source: ONNX SoftmaxCrossEntropyLoss-13;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/loss/softmax_cross_entropy_loss_impl.cc.
    """

    name = "SoftmaxCrossEntropyLoss"
    domain = "ai.onnx"
    since = 13
    inputs = (SCORES, LABELS, Input("weights", "T", optional=True, shape="shape (C,)"))
    ignore_index = IGNORE_ATTRIBUTE
    check = CHECK


class SoftmaxCrossEntropyLoss12(SoftmaxCrossEntropyLoss13):
    """Cross-entropy: loss of a row = -weights[label] log_prob[label].

    As in version 13, which differs in types alone; here both have all of them.

    Source: ONNX SoftmaxCrossEntropyLoss-12.
    """

    name = "SoftmaxCrossEntropyLoss"
    since, until = 12, 12


class SoftmaxCrossEntropyLossGrad(GradientOp):
    """Gradient of SoftmaxCrossEntropyLoss: d_logits = (e^log_prob - [label]) dY weight[label] / N.

    [label] is 1 at the label, else 0. N is the sum of the rows' weights for the mean, else 1.
    Ignored rows and rows of weight 0 are 0, whatever is in them, and so are all where N is 0; in
    other rows NaN gives NaN, also where dY is 0. A label out of range makes its row NaN.

    Memory: a workspace of at most 2 KiB.

    Source: ONNX SoftmaxCrossEntropyLoss-13, gradient;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/loss/softmax_cross_entropy_loss_impl.cc.
    """

    inputs = (DY, LOG_PROB, LABEL, Input("weight", "T", optional=True, shape="shape (C,)"))
    ignore_index = IGNORE_ATTRIBUTE
    check = CHECK


class SoftmaxCrossEntropyLossInternal(LossOp):
    """Cross-entropy with outputs of another type: loss of a row = -weights[label] log_prob[label].

    As SoftmaxCrossEntropyLoss, but that ignore_index is an input, and that outputs have the type
    `output_type`, in which weights may be too. They are rounded to it once.

    Memory: a workspace of 4 bytes a row (8 for float64) and at most 2 KiB.

    Source: ONNX SoftmaxCrossEntropyLoss-13;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/loss/softmax_cross_entropy_loss_impl.cc.
    """

    inputs = (SCORES, LABELS, Input("weights", "TW", optional=True, shape="shape (C,)"), IGNORE)
    outputs = (
        Output("output", "TOut", shape=LOSS_SHAPE),
        Output("log_prob", "TOut", shape="shape of scores"),
    )
    output_type = OUTPUT_TYPE
    check = CHECK
    types: ClassVar[Types] = ROWS


class SoftmaxCrossEntropyLossInternalGrad(GradientOp):
    """Gradient: d_logits = (e^log_prob - [label]) dY weight[label] / N + bias.

    As SoftmaxCrossEntropyLossGrad, but that ignore_index is an input, that d_logits has the type
    `output_type`, in which weights may be too, and that a bias is added to every element.

    Memory: a workspace of at most 2 KiB.

    Source: ONNX SoftmaxCrossEntropyLoss-13, gradient;
    ONNX Runtime, orttraining/orttraining/training_ops/cuda/loss/softmax_cross_entropy_loss_impl.cc.
    """

    inputs = (
        DY,
        LOG_PROB,
        LABEL,
        Input("weight", "TW", optional=True, shape="shape (C,)"),
        IGNORE,
        Input("bias", "TOut", optional=True, shape="shape of log_prob"),
    )
    outputs = (
        Output("d_logits", "TOut", may_alias=("log_prob", "bias"), shape="shape of log_prob"),
    )
    output_type = OUTPUT_TYPE
    check = CHECK
    types: ClassVar[Types] = ROWS


class CrossEntropyLossAndGrad(SparseOp):
    """Loss and gradient in one call: d_scores = (softmax - [label]) loss_scale weights[label] / N.

    The loss is that of SoftmaxCrossEntropyLossInternal, not scaled; the gradient is that of
    loss_scale times the loss, and may be written over the scores. Scores are read twice, the second
    time from the cache, and nothing else of their size is needed. Ignored rows, rows of weight 0,
    NaN and labels out of range are as in SoftmaxCrossEntropyLoss and its gradient.

    softcap: scores are softcap tanh(scores / softcap), but -infinity stays. label_smoothing: the
    loss of a row is -((1 - label_smoothing) weights[label] log_prob[label] + label_smoothing
    mean(weights log_prob)). lse_square_scale: the loss of a row has lse_square_scale ln(sum of
    e^scores)^2 weights[label] added.

    Memory: a workspace of 4 bytes a row (8 for float64) and at most 2 KiB.

    Source: ONNX SoftmaxCrossEntropyLoss-13 and its gradient.
    """

    domain = "cupy_training_ops"
    inputs = (
        *SoftmaxCrossEntropyLossInternal.inputs,
        LOSS_SCALE,
    )
    outputs: ClassVar[tuple[Output, ...]] = (
        Output("output", "TOut", shape=LOSS_SHAPE),
        Output("d_scores", "T", may_alias=("scores",), shape="shape of scores"),
    )
    output_type = OUTPUT_TYPE
    check = CHECK
    label_smoothing = SMOOTHING
    lse_square_scale = SQUARE_SCALE
    softcap = SOFTCAP
    types: ClassVar[Types] = ROWS

    def infer(
        self, scores: Spec, labels: Spec, weights: Spec | None, *others: Any
    ) -> tuple[Spec, ...]:
        """Return the specs of output and d_scores; others: ignored label and loss_scale."""
        rows, t_out = self.check_shapes(scores, labels, weights)
        if self.label_smoothing:
            self.check_classes(scores)
        return self.loss(rows, t_out), Spec(scores.shape, scores.dtype)

    def plan(
        self, device: Device, scores: Spec, labels: Spec, weights: Spec | None, *others: Any
    ) -> Plan:
        """Plan the call; others: ignored label, loss_scale, and the outputs, each or None."""
        ignored, scale, output, gradient, *measures = others
        targets = self.targets(scores, labels, weights, ignored)
        rows, factor = self.rows(device, scores), 1.0 if scale is None else scale
        numbers = self.label_smoothing, self.lse_square_scale, self.softcap
        terms = Terms(*numbers, *measures)
        return cross_entropy.both(rows, scores, targets, factor, output, gradient, terms)


class MeasuredCrossEntropyLossAndGrad(CrossEntropyLossAndGrad):
    """Loss, gradient and more: z_loss of a row = lse_square_scale ln(sum of e^scores)^2.

    As CrossEntropyLossAndGrad, in the same pass over the scores: z_loss, with the rows' weights and
    reduced, is the part of the output that lse_square_scale adds. predicted is the first class with
    the largest score, -1 in rows that are ignored and where softmax is NaN: the accuracy is the
    share of rows that have it as their label. There are 2^24 classes at most.

    Memory: a workspace of 8 bytes a row (16 for float64) and at most 2 KiB.

    Source: ONNX SoftmaxCrossEntropyLoss-13 and its gradient; Liger-Kernel, return_z_loss,
    return_token_accuracy and return_predicted_tokens of liger_cross_entropy.
    """

    outputs = (
        *CrossEntropyLossAndGrad.outputs,
        Output("z_loss", "TOut", shape=LOSS_SHAPE),
        Output("predicted", "int64", shape="shape of labels"),
    )

    def infer(
        self, scores: Spec, labels: Spec, weights: Spec | None, *others: Any
    ) -> tuple[Spec, ...]:
        """Return the specs of output, d_scores, z_loss and predicted."""
        loss, gradient = super().infer(scores, labels, weights, *others)
        self.check_classes(scores)
        return loss, gradient, loss, Spec(labels.shape, INT64)


class DenseCrossEntropyLossAndGrad(CrossEntropyOp):
    """Loss against probabilities, and its gradients: loss of a row = -sum of share log_prob.

    share = weights ((1 - label_smoothing) target + label_smoothing / C), of each class; log_prob is
    that of softcap tanh(scores / softcap), where -infinity stays. lse_square_scale ln(sum of
    e^scores)^2 is added, and row_weights multiply all of a row's loss. A share of 0 has no part in
    the loss, whatever its log_prob is; a row of weight 0 has loss and gradients 0, whatever is in
    it. The mean divides by the number of rows; without rows it is 0.

    d_scores = (softmax sum(share) - share) loss_scale row_weights / N without the other terms, and
    d_target = -weights (1 - label_smoothing) log_prob loss_scale row_weights / N, N the number of
    rows for the mean, else 1. Either may be written over what it is the gradient of. Targets need
    not sum to 1.

    Memory: a workspace of 4 bytes a row (8 for float64) and at most 2 KiB.

    Source: PyTorch, torch.nn.functional.cross_entropy against probabilities, and its gradient.
    """

    domain = "cupy_training_ops"
    axis = 1
    inputs = (
        SCORES,
        Input("target", "TTarget", shape="shape of scores", doc="of each row a distribution"),
        Input("weights", "TW", optional=True, shape="shape (C,)"),
        Input("row_weights", "TRow", optional=True, shape="shape (N, ...)"),
        LOSS_SCALE,
    )
    outputs = (
        Output("output", "TOut", shape=DENSE_LOSS_SHAPE),
        Output("d_scores", "T", may_alias=("scores",), shape="shape of scores"),
        Output("d_target", "TTarget", may_alias=("target",), shape="shape of scores"),
    )
    output_type = OUTPUT_TYPE
    label_smoothing = SMOOTHING
    lse_square_scale = SQUARE_SCALE
    softcap = SOFTCAP
    types: ClassVar[Types] = TypeRows(
        "T TTarget TOut TRow TW",
        "float64 float64 float64 float64 float64",
        "float32 float32 float32 float32 float32",
        "H H H float32 H",
        "H H float32 float32 H",
        "H H float32 float32 float32",
        "H float32 float32 float32 H",
        "H float32 float32 float32 float32",
        H=HALVES,
    )

    def infer(
        self,
        scores: Spec,
        target: Spec,
        weights: Spec | None,
        row_weights: Spec | None,
        _: Any,
    ) -> tuple[Spec, ...]:
        """Return the specs of output, d_scores and d_target; refuse shapes that do not fit."""
        if len(scores.shape) < 2:
            refuse(self.name, "scores", SCORES.shape, f"shape {scores.shape}")
        self.refuse_unlike("target", target, scores.shape, "scores")
        rows = (scores.shape[0], *scores.shape[2:])
        if weights is not None:
            self.refuse_unlike("weights", weights, scores.shape[1:2], "the classes")
        if row_weights is not None:
            self.refuse_unlike("row_weights", row_weights, rows, "scores without classes")
        if self.label_smoothing:
            self.check_classes(scores)
        loss = self.loss(rows, self.output_type or scores.dtype)
        return loss, Spec(scores.shape, scores.dtype), Spec(scores.shape, target.dtype)

    def plan(
        self,
        device: Device,
        scores: Spec,
        target: Spec,
        weights: Spec | None,
        row_weights: Spec | None,
        scale: Any,
        output: Spec | None,
        gradient: Spec | None,
        of_target: Spec | None,
    ) -> Plan:
        """Plan the call; scale: loss_scale. gradient, of_target: d_scores, d_target, or None."""
        rows = replace(self.rows(device, scores), t_target=target.dtype)
        classes = Targets(None, scores.shape[1], weights)
        numbers = self.label_smoothing, self.lse_square_scale, self.softcap
        return cross_entropy.both(
            rows,
            scores,
            classes,
            1.0 if scale is None else scale,
            output,
            gradient,
            Terms(*numbers),
            Probabilities(target, row_weights, of_target),
        )


OPS: dict[str, type[Op] | tuple[type[Op], ...]] = {
    "CrossEntropyLossAndGrad": CrossEntropyLossAndGrad,
    "DenseCrossEntropyLossAndGrad": DenseCrossEntropyLossAndGrad,
    "MeasuredCrossEntropyLossAndGrad": MeasuredCrossEntropyLossAndGrad,
    "SoftmaxCrossEntropy": SoftmaxCrossEntropy,
    "SoftmaxCrossEntropyGrad": SoftmaxCrossEntropyGrad,
    "SoftmaxCrossEntropyLoss": (SoftmaxCrossEntropyLoss12, SoftmaxCrossEntropyLoss13),
    "SoftmaxCrossEntropyLossGrad": SoftmaxCrossEntropyLossGrad,
    "SoftmaxCrossEntropyLossInternal": SoftmaxCrossEntropyLossInternal,
    "SoftmaxCrossEntropyLossInternalGrad": SoftmaxCrossEntropyLossInternalGrad,
    "SparseSoftmaxCrossEntropy": SparseSoftmaxCrossEntropy,
    "SparseSoftmaxCrossEntropyGrad": SparseSoftmaxCrossEntropyGrad,
}
