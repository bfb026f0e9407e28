# SPDX-License-Identifier: MIT
"""Losses that are added to a model, as nodes over its first output and labels.

cross_entropy        mean of -log softmax(scores)[label], classes along axis 1
mse                  mean of (scores - labels)^2
l1                   mean of |scores - labels|
bce_with_logits      mean of log(1 + e^scores) - labels scores
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..errors import refuse, shown
from .gradients.rules import INT64
from .graph import Graph, Node, Value

LABELS = "labels"
PREFIX = "onnx::loss::"  # of the names of values that are added, as upstream has it
Nodes = list[Node]


def with_loss(graph: Graph, loss: Any) -> Graph:
    """The graph with a loss as its first output.

    loss: "cross_entropy", "mse", "l1", "bce_with_logits", or the name of an output that is one
    number.
    """
    outputs = {item.name: item for item in graph.outputs}
    if loss in outputs:
        rest = tuple(item for item in graph.outputs if item.name != loss)
        return replace(graph, outputs=(outputs[loss], *rest))
    if loss not in LOSSES:
        expected = f"one of {', '.join(LOSSES)}, or an output of the model"
        refuse("make_artifacts", "loss", expected, shown(loss))
    scores = graph.outputs[0]
    version = max((node.version for node in graph.nodes if node.is_standard), default=17)
    maker = _Maker(scores, version)
    labels = LOSSES[loss](maker)
    result = Value(maker.nodes[-1].outputs[0], scores.dtype, ())
    made = [name for node in maker.nodes for name in node.outputs]
    types = {**graph.types, **(dict.fromkeys(made, scores.dtype) if scores.dtype else {})}
    return replace(
        graph,
        nodes=(*graph.nodes, *maker.nodes),
        inputs=(*graph.inputs, labels),
        outputs=(result, *graph.outputs),
        types=types,
        shapes={**graph.shapes, result.name: ()},
    )


class _Maker:
    """Makes the nodes of a loss."""

    def __init__(self, scores: Value, version: int) -> None:
        self.scores, self.version = scores, version
        self.nodes: Nodes = []

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; the name of its result comes back."""
        name = f"{PREFIX}{len(self.nodes)}"
        self.nodes.append(Node(op_type, "", self.version, inputs, (name,), attributes, name))
        return name


def _cross_entropy(maker: _Maker) -> Value:
    maker.op("SoftmaxCrossEntropyLoss", maker.scores.name, LABELS, reduction="mean")
    shape = maker.scores.shape
    return Value(LABELS, INT64, None if shape is None else (*shape[:1], *shape[2:]))


def _mse(maker: _Maker) -> Value:
    difference = maker.op("Sub", maker.scores.name, LABELS)
    maker.op("ReduceMean", maker.op("Mul", difference, difference), keepdims=0)
    return maker.scores._replace(name=LABELS)


def _l1(maker: _Maker) -> Value:
    difference = maker.op("Sub", maker.scores.name, LABELS)
    maker.op("ReduceMean", maker.op("Abs", difference), keepdims=0)
    return maker.scores._replace(name=LABELS)


def _bce_with_logits(maker: _Maker) -> Value:
    scores = maker.scores.name
    product = maker.op("Mul", LABELS, scores)
    maker.op("ReduceMean", maker.op("Sub", maker.op("Softplus", scores), product), keepdims=0)
    return maker.scores._replace(name=LABELS)


LOSSES: dict[str, Callable[[_Maker], Value]] = {
    "cross_entropy": _cross_entropy,
    "mse": _mse,
    "l1": _l1,
    "bce_with_logits": _bce_with_logits,
}
