# SPDX-License-Identifier: MIT
"""Bases of the cross-entropy operators: how shapes are checked, and which plan is made."""

from __future__ import annotations

from typing import Any, ClassVar

from ...call.op import Op
from ...declare.schema import Output, Shape, Spec, attribute, boolean, one_of
from ...declare.type_rows import Types
from ...dtypes import FLOATS, INT64, Dtype, dtype_name, dtype_names, to_dtype
from ...errors import DtypeError, refuse
from ...plan import Device, Plan
from ...planning.lines import Lines
from . import plan as cross_entropy
from .plan import Rows, Targets

LABEL_TYPES = (INT64, to_dtype("int32"))
CHECK = attribute(
    boolean,
    False,
    doc="True refuses labels out of range before any launch, for which the call reads the labels, "
    "waits for the device and cannot be captured in a graph",
)
LOSS_SHAPE = "shape (), or for reduction='none' the shape of the labels"


class CrossEntropyOp(Op):
    """Base of all: how shapes are checked, and the rows of a call."""

    types: ClassVar[Types] = {"T": FLOATS, "Tind": LABEL_TYPES}
    reduction = attribute(one_of("mean", "sum", "none"), "mean")

    def loss(self, labels: Shape, t: Dtype) -> Spec:
        return Spec(labels if self.reduction == "none" else (), t)

    def refuse_unlike(self, name: str, spec: Spec, expected: Shape, like: str) -> None:
        if spec.shape != expected:
            refuse(self.name, name, f"shape {expected}, as {like}", f"shape {spec.shape}")

    def check_slope(self, dy: Spec, labels: Shape) -> None:
        """Refuse a dY without the loss's shape; of a reduced loss it may have rank 1."""
        if self.reduction == "none":
            self.refuse_unlike("dY", dy, labels, "the labels")
        elif dy.size != 1 or len(dy.shape) > 1:
            refuse(self.name, "dY", f"one element for {self.reduction}", f"shape {dy.shape}")


class DenseOp(CrossEntropyOp):
    """Scores and targets of one shape, whose last axis is that of the classes."""

    types: ClassVar[Types] = {"T": FLOATS}

    def checked_rows(self, name: str, scores: Spec, label: Spec) -> Shape:
        if not scores.shape:
            refuse(self.name, name, "arrays of at least one dimension", "a scalar")
        self.refuse_unlike("label", label, scores.shape, name)
        return scores.shape[:-1]

    def rows(self, device: Device, scores: Spec) -> Rows:
        lines = Lines.along(scores.shape, len(scores.shape) - 1)
        return Rows(device, lines, scores.dtype, scores.dtype, self.reduction)


class SparseOp(CrossEntropyOp):
    """Scores and a label for each of their rows; a weight for each class, or for each row."""

    axis: ClassVar[int] = 1  # of the classes
    n_before: ClassVar[int] = 0  # inputs before the scores
    check = CHECK
    output_type: Dtype | None = None  # where there is no such attribute
    ignore_index: int | None = None

    def ignored_label(self, given: tuple[Any, ...]) -> int | None:
        """The label that is ignored, an input or an attribute."""
        return given[0] if given else self.ignore_index

    def check_shapes(self, scores: Spec, labels: Spec, weights: Spec | None) -> tuple[Shape, Dtype]:
        """The shape of the rows, and the type of the outputs."""
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

    def rows(self, device: Device, scores: Spec) -> Rows:
        lines = Lines.along(scores.shape, self.axis % len(scores.shape))
        out = self.output_type or scores.dtype
        return Rows(device, lines, scores.dtype, out, self.reduction)

    def targets(
        self, scores: Spec, labels: Spec, weights: Spec | None, ignored: int | None
    ) -> Targets:
        return Targets(labels, scores.shape[self.axis], weights, ignored, self.axis != 1)

    def check_values(self, *inputs: Any) -> None:
        scores, labels, _, *ignored = inputs[self.n_before :]
        n_classes, ignore = scores.shape[self.axis], self.ignored_label(tuple(ignored))
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
        rows, t_out = self.check_shapes(scores, labels, weights)
        return self.loss(rows, t_out), Spec(scores.shape, t_out)

    def plan(
        self, device: Device, scores: Spec, labels: Spec, weights: Spec | None, *others: Any
    ) -> Plan:
        *ignored, output, log_prob = others
        targets = self.targets(scores, labels, weights, self.ignored_label(tuple(ignored)))
        return cross_entropy.forward(self.rows(device, scores), scores, targets, output, log_prob)


class GradientOp(SparseOp):
    """Gradient of the scores, from that of the loss."""

    n_before = 1
    outputs = (Output("d_logits", "T", may_alias=("log_prob",), shape="shape of log_prob"),)

    def infer(
        self, dy: Spec, log_prob: Spec, label: Spec, weight: Spec | None, *others: Any
    ) -> tuple[Spec, ...]:
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
        *others, gradient = rest
        bias = others[1] if others else None
        targets = self.targets(log_prob, label, weight, self.ignored_label(tuple(others[:1])))
        rows = self.rows(device, log_prob)
        return cross_entropy.backward(rows, dy, log_prob, targets, bias, gradient)
