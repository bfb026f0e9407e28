# SPDX-License-Identifier: MIT
"""Cross-entropy losses over the logarithm of Softmax, and their gradients.

Losses of rows, each in float32 (float64 for float64) and infinite beyond its range, are weighted
and summed in float64 in a fixed order, divided once and rounded once.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ...call.op import Op
from ...declare.schema import (
    Changing,
    Input,
    Output,
    Spec,
    attribute,
    dtype,
    finite,
    integer,
    optional,
    single,
)
from ...declare.type_rows import TypeRows, Types
from ...dtypes import BFLOAT16, FLOAT16, FLOATS
from ...plan import Device, Plan
from . import plan as cross_entropy
from .plan_losses import CHECK, LABEL_TYPES, LOSS_SHAPE, DenseOp, GradientOp, LossOp, SparseOp

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
    """An integer, also in an array or a sequence of one element."""
    return integer(single(value))


IGNORE_ATTRIBUTE = attribute(optional(integer), None, doc="the label of rows that do not count")
OUTPUT_TYPE = attribute(optional(dtype), None, type="TOut", doc="T where it is None")

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


# ---- targets that are distributions --------------------------------------------------------------


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
        rows = self.checked_rows("log_prob", log_prob, label)
        self.check_slope(dy, rows)
        return (Spec(log_prob.shape, log_prob.dtype),)

    def plan(self, device: Device, dy: Spec, log_prob: Spec, label: Spec, gradient: Spec) -> Plan:
        rows = self.rows(device, log_prob)
        return cross_entropy.dense_backward(rows, dy, log_prob, label, gradient)


# ---- targets that are classes --------------------------------------------------------------------


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

    Memory: a workspace of 4 bytes a row (8 for float64) and at most 2 KiB.

    Source: ONNX SoftmaxCrossEntropyLoss-13 and its gradient.
    """

    domain = "cupy_training_ops"
    inputs = (
        *SoftmaxCrossEntropyLossInternal.inputs,
        Input(
            "loss_scale",
            "float32",
            memory="either",
            convert=finite,
            optional=True,
            shape="one element",
            doc="1 where it is left out",
        ),
    )
    outputs = (
        Output("output", "TOut", shape=LOSS_SHAPE),
        Output("d_scores", "T", may_alias=("scores",), shape="shape of scores"),
    )
    output_type = OUTPUT_TYPE
    check = CHECK
    types: ClassVar[Types] = ROWS

    def infer(
        self,
        scores: Spec,
        labels: Spec,
        weights: Spec | None,
        ignored: int | None,
        scale: Spec | Changing | None,
    ) -> tuple[Spec, ...]:
        rows, t_out = self.check_shapes(scores, labels, weights)
        return self.loss(rows, t_out), Spec(scores.shape, scores.dtype)

    def plan(
        self, device: Device, scores: Spec, labels: Spec, weights: Spec | None, *others: Any
    ) -> Plan:
        ignored, scale, output, gradient = others
        targets = self.targets(scores, labels, weights, ignored)
        rows, factor = self.rows(device, scores), 1.0 if scale is None else scale
        return cross_entropy.both(rows, scores, targets, factor, output, gradient)


OPS: dict[str, type[Op] | tuple[type[Op], ...]] = {
    "CrossEntropyLossAndGrad": CrossEntropyLossAndGrad,
    "SoftmaxCrossEntropy": SoftmaxCrossEntropy,
    "SoftmaxCrossEntropyGrad": SoftmaxCrossEntropyGrad,
    "SoftmaxCrossEntropyLoss": (SoftmaxCrossEntropyLoss12, SoftmaxCrossEntropyLoss13),
    "SoftmaxCrossEntropyLossGrad": SoftmaxCrossEntropyLossGrad,
    "SoftmaxCrossEntropyLossInternal": SoftmaxCrossEntropyLossInternal,
    "SoftmaxCrossEntropyLossInternalGrad": SoftmaxCrossEntropyLossInternalGrad,
    "SparseSoftmaxCrossEntropy": SparseSoftmaxCrossEntropy,
    "SparseSoftmaxCrossEntropyGrad": SparseSoftmaxCrossEntropyGrad,
}
