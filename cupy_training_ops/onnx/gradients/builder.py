# SPDX-License-Identifier: MIT
"""Gradients of a scalar with respect to other values of a graph, as nodes behind it.

loss = sum(x w)                         a graph, its loss
y_grad = 1, w_grad = sum(x y_grad)      nodes that are added, for w
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ...dtypes import FLOAT32
from ...errors import ArgumentError, pass_on
from ..graph import Graph, Node, Problems
from .rules import BOOL, RULES, STRAIGHT, UNDEFINED, ZERO, Rule, Site
from .writer import Writer, is_real

SUFFIX = "_grad"  # of the name of a value's gradient, as upstream has it


def add_gradients(
    graph: Graph,
    loss: str,
    names: Sequence[str],
    parameters: Collection[str] = (),
    model: str = "the model",
) -> tuple[Graph, dict[str, str]]:
    """The graph with the gradients of `loss`, one number, and their names by those of `names`.

    parameters: the constants that may change, those of `names` or more. A value that the loss does
    not depend on has none. ArgumentError names all nodes on the way whose operator has no gradient.
    """
    backward = _Backward(graph, names, {*names, *parameters}, model)
    gradients = backward.run(loss)
    return backward.writer.result(), {name: gradients[name] for name in names if name in gradients}


class _Backward:
    """One pass from the loss to the parameters."""

    def __init__(
        self, graph: Graph, names: Sequence[str], parameters: Collection[str], model: str
    ) -> None:
        self.writer, self.problems = Writer(graph, parameters), Problems(model)
        self.moving = _dependents(graph, names)
        self.parts: dict[str, list[str]] = {}  # of a value's gradient, to be added up

    def run(self, loss: str) -> dict[str, str]:
        """The names of gradients by value."""
        dtype = self.writer.types.get(loss, FLOAT32)
        self._refuse_without_rules(loss)
        self.parts[loss] = [self.writer.constant(loss + SUFFIX, np.ones((), dtype))]
        gradients: dict[str, str] = {}
        for place in reversed(range(len(self.writer.forward))):
            self._node(place, gradients)
        self.problems.refuse()
        return gradients | {name: self._sum(name) for name in self.parts if name not in gradients}

    def _refuse_without_rules(self, loss: str) -> None:
        """Refuse a graph for all nodes at once between the loss and the parameters."""
        reached = {loss}
        for node in reversed(self.writer.forward):
            moving = self.moving.intersection(node.inputs)
            if moving and not reached.isdisjoint(node.outputs):
                reached |= moving
                try:
                    _rule_of(node)
                except ArgumentError as error:
                    self.problems.add(node.title, error)
        self.problems.refuse()

    def _node(self, place: int, gradients: dict[str, str]) -> None:
        node = self.writer.forward[place]
        for name in node.outputs:
            if name in self.parts:
                gradients[name] = self._sum(name)
        wanted = tuple(name in self.moving for name in node.inputs)
        if not any(wanted) or not any(name in gradients for name in node.outputs):
            return
        try:
            dys = [gradients.get(name, "") for name in node.outputs]
            results = _rule_of(node)(Site(self.writer, place, dys, wanted))
        except ArgumentError as error:
            self.problems.add(node.title, error)
            return
        except Exception as error:  # of a damaged node: rules do not look for what cannot be run
            pass_on(error)
            self.problems.add(node.title, f"its gradient cannot be made: {error}")
            return
        for name, is_wanted, result in zip(node.inputs, wanted, results, strict=False):
            if is_wanted and result is not None:
                self.parts.setdefault(name, []).append(result.name)
                if name in self.writer.shapes:  # ONNX Runtime's MaxPoolGrad asks the graph for it
                    self.writer.shapes.setdefault(result.name, self.writer.shapes[name])

    def _sum(self, name: str) -> str:
        """The gradient of a value, the sum of its parts."""
        parts = self.parts[name]
        if len(parts) == 1:
            return parts[0]
        return self.writer.add("Sum", parts, name + SUFFIX)[0]


def _dependents(graph: Graph, names: Collection[str]) -> set[str]:
    """The values that move with those of `names`, these included.

    Whole numbers do not move, but for those that stand for real ones.
    """
    moving, straight = set(names), set[str]()
    for node in graph.nodes:
        if moving.isdisjoint(node.inputs) or node.op_type in ZERO:
            continue
        outputs = set(filter(None, node.outputs))
        if node.op_type in STRAIGHT or not straight.isdisjoint(node.inputs):
            outputs -= {name for name in outputs if graph.types.get(name) == BOOL}
            straight |= {name for name in outputs if not is_real(graph.types.get(name))}
            moving |= outputs
        elif node.op_type in UNDEFINED:
            moving |= outputs
        else:
            moving |= {name for name in outputs if is_real(graph.types.get(name))}
    return moving


def _rule_of(node: Node) -> Rule:
    rule = RULES.get(node.op_type)
    if rule is not None:
        return rule
    reason = UNDEFINED.get(node.op_type, "no gradient of this operator is known")
    raise ArgumentError(reason)
