# SPDX-License-Identifier: MIT
"""Losses that are added to a model, as nodes over its first output and labels.

cross_entropy          mean of -log softmax(scores)[label], classes along axis 1
token_cross_entropy    the same with classes along the last axis
mse                    mean of (scores - labels)^2
l1                     mean of |scores - labels|
bce_with_logits        mean of log(1 + e^scores) - labels scores
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..dtypes import Dtype
from ..errors import ArgumentError, cut, raise_if_from_handler, refuse, shown
from .gradients.rules import INT64
from .graph import Extent, Graph, Node, Value
from .models import Proto, onnx_package, read_inferred

LABELS = "labels"
SCORES = "scores"
PREFIX = "onnx::loss::"  # of the names of added values, as ONNX Runtime has it
OPSET = 17


def with_loss(graph: Graph, loss: Any) -> Graph:
    """Return the graph with a loss as its first output, and its labels (if any) as the last input.

    loss: one of LOSSES, the name of an output that is one number, or an onnx.FunctionProto of
    (scores, labels) whose only output is one number.
    """
    outputs = {item.name: item for item in graph.outputs}
    if not outputs:
        refuse("artifacts", "model", "one that has an output", "none")
    if isinstance(loss, str) and loss in outputs:
        scores = outputs[loss]._replace(name=SCORES)
        return _joined(graph, loss, Graph((), (scores,), (scores,), {}))
    scores = graph.outputs[0]._replace(name=SCORES)
    version = _version(graph)
    if isinstance(loss, onnx_package().FunctionProto):
        proto = _of_function(loss, scores, version)
    elif isinstance(loss, str) and loss in LOSSES:
        proto = LOSSES[loss](scores).model(version)
    else:
        expected = f"one of {', '.join(LOSSES)}, an output of the model, or an onnx.FunctionProto"
        refuse("artifacts", "loss", expected, shown(loss))
    part, _ = read_inferred(proto, version)
    return _joined(graph, graph.outputs[0].name, part)


def _joined(graph: Graph, scores: str, part: Graph) -> Graph:
    """Return the graph with the nodes of a loss behind its value `scores`.

    part: the loss as a graph, with inputs "scores" and, if it has them, "labels". Its values become
    onnx::loss::0, 1, ..., by which an export finds and removes them.
    """
    used = {name for node in graph.nodes for name in node.outputs}
    used |= {item.name for item in graph.inputs} | graph.constants.keys()
    numbers = (name for i in itertools.count() if (name := f"{PREFIX}{i}") not in used)
    labels = (f"{LABELS}_{i}" if i else LABELS for i in itertools.count())
    names = {SCORES: scores, LABELS: next(name for name in labels if name not in used), "": ""}

    def renamed(name: str) -> str:
        """Return the name in the whole graph of a value of `part`; a new one at first."""
        if name not in names:
            names[name] = next(numbers)
        return names[name]

    nodes = [
        replace(
            node,
            inputs=tuple(map(renamed, node.inputs)),
            outputs=tuple(map(renamed, node.outputs)),
            name=renamed(node.outputs[0]),
        )
        for node in part.nodes
    ]
    constants = {renamed(n): a for n, a in part.constants.items()}
    result = part.outputs[0]._replace(name=renamed(part.outputs[0].name))
    if any(extent not in (1, None) for extent in result.shape or ()):
        refuse(
            "artifacts",
            "loss",
            "an output or a function that gives one number",
            f"one of shape {result.shape}",
        )
    if result.shape != ():  # more than one element is refused as it runs
        inputs, version = (result.name, renamed("no extents")), _version(graph)
        result = result._replace(name=renamed("number"), shape=())
        nodes.append(Node("Reshape", "", version, inputs, (result.name,), {}, result.name))
        constants[inputs[1]] = np.array([], INT64)
    types = {renamed(n): t for n, t in part.types.items()} | {result.name: result.dtype}
    return replace(
        graph,
        nodes=(*graph.nodes, *nodes),
        inputs=(*graph.inputs, *_labels(part, names[LABELS])),
        outputs=(result, *(item for item in graph.outputs if item.name != result.name)),
        constants={**graph.constants, **constants},
        types={**graph.types, **{n: t for n, t in types.items() if t is not None}},
        shapes={**graph.shapes, **{renamed(n): s for n, s in part.shapes.items()}, result.name: ()},
    )


def _labels(part: Graph, name: str) -> list[Value]:
    return [item._replace(name=name) for item in part.inputs if item.name == LABELS]


def _version(graph: Graph) -> int:
    return max((node.version for node in graph.nodes if node.is_standard), default=OPSET)


# ---- by name -------------------------------------------------------------------------------------


class _Loss:
    """A loss as `nodes` over inputs "scores" and "labels", and `constants` by name.

    scores: the declaration of the first. labels, shape: type and shape of the second.
    """

    def __init__(self, scores: Value, labels: Dtype | None, shape: Sequence[Extent] | None) -> None:
        self.inputs = (scores, Value(LABELS, labels, None if shape is None else tuple(shape)))
        self.nodes: list[Node] = []
        self.constants: dict[str, Any] = {}

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node, and return the name of its result."""
        name = str(len(self.nodes))
        self.nodes.append(Node(op_type, "", OPSET, inputs, (name,), attributes, name))
        return name

    def ints(self, *values: int) -> str:
        """Add an int64 vector as a constant, and return its name."""
        name = f"ints_{len(self.constants)}"
        self.constants[name] = np.array(values, INT64)
        return name

    def model(self, version: int) -> Proto:
        """Return the loss as a ModelProto of an opset, whose output is the last node's."""
        from .writing import model_of

        nodes = tuple(replace(node, version=version) for node in self.nodes)
        result = Value(nodes[-1].outputs[0], self.inputs[0].dtype, ())
        return model_of(Graph(nodes, self.inputs, (result,), self.constants), "loss")


def _cross_entropy(scores: Value) -> _Loss:
    """Return the loss of scores (N, classes, ...) and labels (N, ...)."""
    shape = scores.shape
    loss = _Loss(scores, INT64, None if shape is None else (*shape[:1], *shape[2:]))
    loss.op("SoftmaxCrossEntropyLoss", SCORES, LABELS, reduction="mean")
    return loss


def _token_cross_entropy(scores: Value) -> _Loss:
    """Return the loss of scores (..., classes) and labels (...), as a matrix and a vector."""
    shape = scores.shape
    loss = _Loss(scores, INT64, None if shape is None else shape[:-1])
    rows = loss.op("Flatten", SCORES, axis=-1)
    labels = loss.op("Reshape", LABELS, loss.ints(-1))
    loss.op("SoftmaxCrossEntropyLoss", rows, labels, reduction="mean")
    return loss


def _mse(scores: Value) -> _Loss:
    loss = _Loss(scores, scores.dtype, scores.shape)
    difference = loss.op("Sub", SCORES, LABELS)
    loss.op("ReduceMean", loss.op("Mul", difference, difference), keepdims=0)
    return loss


def _l1(scores: Value) -> _Loss:
    loss = _Loss(scores, scores.dtype, scores.shape)
    loss.op("ReduceMean", loss.op("Abs", loss.op("Sub", SCORES, LABELS)), keepdims=0)
    return loss


def _bce_with_logits(scores: Value) -> _Loss:
    loss = _Loss(scores, scores.dtype, scores.shape)
    product = loss.op("Mul", LABELS, SCORES)
    loss.op("ReduceMean", loss.op("Sub", loss.op("Softplus", SCORES), product), keepdims=0)
    return loss


LOSSES: dict[str, Callable[[Value], _Loss]] = {  # each makes a loss by the scores' declaration
    "cross_entropy": _cross_entropy,
    "token_cross_entropy": _token_cross_entropy,
    "mse": _mse,
    "l1": _l1,
    "bce_with_logits": _bce_with_logits,
}


# ---- of functions --------------------------------------------------------------------------------


def _of_function(function: Proto, scores: Value, version: int) -> Proto:
    """Return a ModelProto of one node that calls a FunctionProto of (scores, labels).

    version: the model's opset. Labels are of the type of scores if the function's nodes take that,
    else int64.
    """
    if len(function.input) != 2 or len(function.output) != 1 or function.attribute:
        expected = "a function of scores and labels with one output and no attributes"
        counts = f"{len(function.input)}, {len(function.output)} and {len(function.attribute)}"
        refuse("artifacts", "loss", expected, f"one of {counts}")
    own = {item.domain: item.version for item in function.opset_import}.get("", version)
    if own > version:
        expected = f"a function of opset {version}, the model's, or an older one"
        refuse("artifacts", "loss", expected, f"opset {own}")
    problem: Exception | None = None
    for dtype in (scores.dtype, INT64):
        model = _calling(function, (scores, Value(LABELS, dtype, None)), own)
        try:
            onnx_package().shape_inference.infer_shapes(model, True, True)
        except Exception as error:  # of ONNX's C++ code
            raise_if_from_handler(error)
            problem = error
            continue
        return model
    raise ArgumentError(f"artifacts: loss: its types do not fit: {cut(str(problem))}")


def _calling(function: Proto, inputs: tuple[Value, ...], version: int) -> Proto:
    """Return a ModelProto whose only node calls the function; version: of its opset."""
    from .writing import model_of

    names = tuple(item.name for item in inputs)
    node = Node(function.name, function.domain, 1, names, ("loss",))
    model = model_of(Graph((node,), inputs, (Value("loss", None, None),), {}), "loss")
    versions = {item.domain: item.version for item in (*function.opset_import, *model.opset_import)}
    del model.opset_import[:]
    make = onnx_package().helper.make_opsetid
    versions[""] = version
    model.opset_import.extend(make(domain, number) for domain, number in versions.items())
    model.functions.append(function)
    return model
