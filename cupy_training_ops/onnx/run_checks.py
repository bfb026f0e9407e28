# SPDX-License-Identifier: MIT
"""Refuses what does not fit as a graph runs: extents of feeds, labels, gradients' shapes.

Labels: an operator makes NaN of those out of range, and looks for them only with check=1. NumPy's
arrays are checked by the operator; those that a GPU is given, before they go there.

Gradients: upstream's gradient of Where is not summed over what a parameter was repeated along, and
its own kernels add a part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..dtypes import HostArray
from ..errors import ArgumentError, cut, pass_on, refuse
from .graph import Extent, Graph, Node
from .passes import ACCUMULATORS
from .runner import Run, Runner

LOSSES = ("SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossInternal", "SparseSoftmaxCrossEntropy")
CLASSES_LAST = LOSSES[2:]
BY_LABELS = LOSSES[::2]  # whose label to be ignored is an attribute
BUFFER = "_grad.accumulation.buffer"
REPEATING = ("Add", "Div", "Mul", "Sub", "Where")  # operators that repeat what they take


# ---- extents -------------------------------------------------------------------------------------


class Extents:
    """The extents that a graph declares, without those of labels whose loss asks for others.

    Upstream declares labels of pixels as it does scores, without their last dimension: the loss
    alone decides then. Names of extents count in training alone: ONNX Runtime does not compare
    them, and some models use one for several, but a target of another batch would be repeated.
    """

    def __init__(self, graph: Graph) -> None:
        self.names_hold = False
        loose = set(_contradictions(graph))
        self._declared = {
            item.name: item.shape
            for item in graph.inputs
            if item.shape and not item.is_sequence and item.name not in loose
        }

    def check(self, arrays: Mapping[str, Any]) -> None:
        """Refuse arrays of other extents; each has the declared rank."""
        by_name: dict[str, int] = {}
        for name, array in arrays.items():
            for place, expected in enumerate(self._declared.get(name, ())):
                extent = array.shape[place]
                wanted = expected
                if type(expected) is str:
                    wanted = by_name.setdefault(expected, extent) if self.names_hold else None
                if wanted is not None and wanted != extent:
                    origin = "" if wanted == expected else f" ({cut(str(expected))})"
                    words = f"{wanted}{origin} as extent {place}"
                    refuse("Session", cut(name), words, f"shape {array.shape}")


def _contradictions(graph: Graph) -> Iterator[str]:
    """Labels whose declared shape is not that of their scores, or whose scores have none."""
    declared = {item.name: item.shape for item in graph.inputs}
    for node in graph.nodes:
        labels = declared.get(node.inputs[1]) if node.op_type in LOSSES else None
        if labels is not None and labels != _shape_of_labels(graph, node):
            yield node.inputs[1]


def _shape_of_labels(graph: Graph, node: Node) -> tuple[Extent, ...] | None:
    """The shape of a loss's labels by that of its scores, or of the logarithms it makes of them."""
    for name in (node.inputs[0], *node.outputs[1:2]):
        scores = graph.shapes.get(name)
        if scores is not None:
            return scores[:-1] if node.op_type in CLASSES_LAST else (scores[:1] + scores[2:])
    return None


# ---- labels --------------------------------------------------------------------------------------


def with_label_checks(graph: Graph) -> Graph:
    """The graph whose losses refuse labels out of range."""
    return graph.with_nodes(
        replace(node, attributes={**node.attributes, "check": 1})
        if node.op_type in LOSSES
        else node
        for node in graph.nodes
    )


class Labels:
    """The range of the labels that a session was last fed from the host, for each loss."""

    def __init__(self, graph: Graph) -> None:
        names = {item.name for item in graph.inputs}
        losses = [node for node in graph.nodes if node.op_type in BY_LABELS]
        self._losses = [node for node in losses if node.inputs[1] in names]
        self._ranges: dict[str, tuple[int, int] | None] = {}  # by the loss's output
        self.classes: dict[str, int] = {}  # how many the last run had, by the same

    def runners(self, graph: Graph, runners: Mapping[int, Runner]) -> dict[int, Runner]:
        """The runners, of which losses check the labels' range."""
        losses = {id(node) for node in self._losses}
        return {
            i: self._with_check(graph.nodes[i], runner) if id(graph.nodes[i]) in losses else runner
            for i, runner in runners.items()
        }

    def _with_check(self, node: Node, runner: Runner) -> Runner:
        return replace(runner, make=lambda xp: partial(self._run, node, runner.make(xp)))

    def _run(self, node: Node, run: Run, values: list[Any], **out: Any) -> Any:
        n = values[0].shape[-1 if node.op_type in CLASSES_LAST else 1]
        self.classes[node.outputs[0]] = n
        self._check(node, n)
        return run(values, **out)

    def look_at(self, name: str, value: Any) -> None:
        """Note the range of a feed, if it is labels."""
        for node in self._losses:
            if node.inputs[1] != name:
                continue
            self._ranges[node.outputs[0]] = None
            if not hasattr(value, "__cuda_array_interface__"):
                try:
                    ignored = node.attributes.get("ignore_index")
                    self._ranges[node.outputs[0]] = _range(np.asarray(value), ignored)
                except ValueError as error:  # it is refused where it is fed
                    pass_on(error)

    def check(self, classes: Mapping[str, int]) -> None:
        """Refuse the labels looked at last, where each loss has so many classes."""
        for node in self._losses:
            if node.outputs[0] in classes:
                self._check(node, classes[node.outputs[0]])

    def _check(self, node: Node, classes: int) -> None:
        labels = self._ranges.get(node.outputs[0])
        if labels is not None and not (labels[0] >= 0 and labels[1] < classes):
            wrong = labels[0] if labels[0] < 0 else labels[1]
            expected = f"labels from 0 to {classes - 1}"
            raise ArgumentError(f"{cut(node.inputs[1])}: expected {expected}, got {wrong}")


def _range(labels: HostArray, ignored: int | None) -> tuple[int, int] | None:
    """The least and the largest; None where there are none."""
    counted = labels if ignored is None else labels[labels != ignored]
    if labels.dtype.kind not in "iu" or not counted.size:
        return None
    return int(counted.min()), int(counted.max())


# ---- gradients -----------------------------------------------------------------------------------


def refuse_unsummed(graph: Graph, parameters: Mapping[str, Any]) -> None:
    """Refuse a graph that says that a gradient is larger than its parameter."""
    makers = _makers(graph)
    shapes = {**graph.shapes, **{name: array.shape for name, array in graph.constants.items()}}
    for node in graph.nodes:
        maker = makers.get(node.inputs[1]) if node.op_type in ACCUMULATORS else None
        parameter = parameters.get(node.inputs[0].removesuffix(BUFFER))
        if parameter is None or maker is None or maker.op_type not in REPEATING:
            continue
        for shape in filter(None, map(shapes.get, maker.inputs)):
            if not _may_repeat_to(shape, parameter.shape):
                extents = ", ".join("?" if n is None else str(n) for n in shape)
                expected = f"expected shape {parameter.shape}, got more than {cut(f'({extents})')}"
                raise ArgumentError(f"TrainingSession: {_title(node, maker)}: {expected}")


def with_gradient_checks(graph: Graph, runners: Mapping[int, Runner]) -> dict[int, Runner]:
    """The runners, of which accumulators refuse larger gradients by their parameters' names."""
    makers = _makers(graph)
    result = dict(runners)
    for i, runner in runners.items():
        node = graph.nodes[i]
        if node.op_type in ACCUMULATORS:
            result[i] = _with_shape_check(runner, _title(node, makers.get(node.inputs[1])))
    return result


def _with_shape_check(runner: Runner, title: str) -> Runner:
    return replace(runner, make=lambda xp: partial(_run_checked, title, runner.make(xp)))


def _run_checked(title: str, run: Run, values: list[Any], **out: Any) -> Any:
    buffer, value = values[:2]
    if buffer.shape != value.shape:
        raise ArgumentError(f"{title}: expected shape {buffer.shape}, got {value.shape}")
    return run(values, **out)


def _title(node: Node, maker: Node | None) -> str:
    origin = f", which {maker.title} makes" if maker else ""
    return f"the gradient of parameter {cut(node.inputs[0].removesuffix(BUFFER))!r}{origin}"


def _makers(graph: Graph) -> dict[str, Node]:
    """The node that makes each value, beyond those that give it another name."""
    makers: dict[str, Node] = {}
    for node in graph.nodes:
        is_same = node.op_type == "Identity" and node.inputs[0] in makers
        origin = makers[node.inputs[0]] if is_same else node
        makers.update(dict.fromkeys(node.outputs, origin))
    return makers


def _may_repeat_to(shape: tuple[Extent, ...], whole: tuple[int, ...]) -> bool:
    """Return True if an array of a shape may be repeated to have another."""
    if len(shape) > len(whole):
        return False
    pairs = zip(reversed(shape), reversed(whole), strict=False)
    return all(not isinstance(n, int) or n in (1, m) for n, m in pairs)
