# SPDX-License-Identifier: MIT
"""Losses that are added to a model, as nodes over its first output and labels.

cross_entropy        mean of -log softmax(scores)[label], classes along axis 1
mse                  mean of (scores - labels)^2
l1                   mean of |scores - labels|
bce_with_logits      mean of log(1 + e^scores) - labels scores
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..dtypes import HostArray
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
    if not isinstance(loss, str) or loss not in {*outputs, *LOSSES}:
        expected = f"one of {', '.join(LOSSES)}, or an output of the model"
        refuse("artifacts", "loss", expected, shown(loss))
    if loss in outputs and outputs[loss].shape == ():
        rest = tuple(item for item in graph.outputs if item.name != loss)
        return replace(graph, outputs=(outputs[loss], *rest))
    if not graph.outputs:
        refuse("artifacts", "model", "one that has an output", "none")
    maker = _Maker(graph, outputs.get(loss, graph.outputs[0]))
    labels = [] if loss in outputs else [LOSSES[loss](maker)]
    if loss in outputs:
        _one_number(maker)
    _, dtype, shape, _ = maker.scores
    made = [name for node in maker.nodes for name in node.outputs]
    types = dict.fromkeys(made, dtype) if dtype else {}
    shapes = {} if shape is None else dict.fromkeys(made, shape)
    return replace(
        graph,
        nodes=(*graph.nodes, *maker.nodes),
        inputs=(*graph.inputs, *labels),
        outputs=(Value(made[-1], dtype, ()), *graph.outputs),
        constants={**graph.constants, **maker.constants},
        types={**graph.types, **types},
        shapes={**graph.shapes, **shapes, made[-1]: ()},
    )


class _Maker:
    """Makes the nodes of a loss, with names that no value of the graph has."""

    def __init__(self, graph: Graph, scores: Value) -> None:
        self.scores = scores
        self.version = max((node.version for node in graph.nodes if node.is_standard), default=17)
        self.nodes: Nodes = []
        self.constants: dict[str, HostArray] = {}
        self._names = {name for node in graph.nodes for name in node.outputs}
        self._names |= {item.name for item in graph.inputs} | graph.constants.keys()

    def labels(self) -> str:
        """The name of the labels."""
        names = (f"{LABELS}_{i}" if i else LABELS for i in itertools.count())
        return next(name for name in names if name not in self._names)

    def new_name(self) -> str:
        """The name of another value."""
        names = (f"{PREFIX}{i}" for i in itertools.count())
        name = next(name for name in names if name not in self._names)
        self._names.add(name)
        return name

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; the name of its result comes back."""
        name = self.new_name()
        self.nodes.append(Node(op_type, "", self.version, inputs, (name,), attributes, name))
        return name


def _one_number(maker: _Maker) -> None:
    """The output itself, which may have a shape such as (1, 1)."""
    name, _, shape, _ = maker.scores
    if shape is not None and any(extent not in (1, None) for extent in shape):
        refuse("artifacts", "loss", "an output of one number", f"{name!r} of shape {shape}")
    no_extents = maker.new_name()
    maker.constants[no_extents] = np.empty(0, INT64)
    maker.op("Reshape", name, no_extents)


def _cross_entropy(maker: _Maker) -> Value:
    labels, shape = maker.labels(), maker.scores.shape
    maker.op("SoftmaxCrossEntropyLoss", maker.scores.name, labels, reduction="mean")
    return Value(labels, INT64, None if shape is None else (*shape[:1], *shape[2:]))


def _mse(maker: _Maker) -> Value:
    labels = maker.labels()
    difference = maker.op("Sub", maker.scores.name, labels)
    maker.op("ReduceMean", maker.op("Mul", difference, difference), keepdims=0)
    return maker.scores._replace(name=labels)


def _l1(maker: _Maker) -> Value:
    labels = maker.labels()
    difference = maker.op("Sub", maker.scores.name, labels)
    maker.op("ReduceMean", maker.op("Abs", difference), keepdims=0)
    return maker.scores._replace(name=labels)


def _bce_with_logits(maker: _Maker) -> Value:
    scores, labels = maker.scores.name, maker.labels()
    product = maker.op("Mul", labels, scores)
    maker.op("ReduceMean", maker.op("Sub", maker.op("Softplus", scores), product), keepdims=0)
    return maker.scores._replace(name=labels)


LOSSES: dict[str, Callable[[_Maker], Value]] = {
    "cross_entropy": _cross_entropy,
    "mse": _mse,
    "l1": _l1,
    "bce_with_logits": _bce_with_logits,
}
