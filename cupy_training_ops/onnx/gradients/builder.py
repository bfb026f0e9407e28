# SPDX-License-Identifier: MIT
"""Gradients of a scalar with respect to other values of a graph, as nodes behind it.

loss = sum(x w)                         a graph, its loss
y_grad = 1, w_grad = sum(x y_grad)      nodes that are added, for w
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from ...dtypes import FLOAT32, Dtype
from ...errors import ArgumentError, raise_if_from_handler
from ..bodies import expand
from ..graph import Graph, Node, Problems
from ..writing import with_inferred
from .rules import BOOL, BY_BODY, RULES, STRAIGHT, UNDEFINED, ZERO, Rule, Site
from .writer import Writer, is_real, sum_of_sequences

SUFFIX = "_grad"  # of the name of a value's gradient, as in ONNX Runtime


def with_rules(graph: Graph) -> Graph:
    """Return the graph with bodies (ONNX's functions of nodes) for operators that have no rule."""
    known = (RULES.keys() | ZERO | UNDEFINED.keys()) - BY_BODY
    expanded = expand(graph, lambda node: node.is_standard and node.op_type not in known)
    return graph if expanded is graph else with_inferred(expanded)


def add_gradients(
    graph: Graph,
    loss: str,
    names: Sequence[str],
    parameters: Collection[str] = (),
    model: str = "the model",
) -> tuple[Graph, dict[str, str]]:
    """Return the graph with nodes for d loss / d x of each x in `names`, and {x: gradient's name}.

    loss: the name of a value of one element. parameters: names of constants whose values will
    change; rules take the others as fixed. An x that the loss does not depend on is not in the
    result. ArgumentError names all nodes on the way whose operator has no gradient. model: the
    model's name in it.
    """
    writer, places = Writer(graph, {*names, *parameters}), range(len(graph.nodes))
    one = writer.constant(loss + SUFFIX, np.ones((), writer.types.get(loss, FLOAT32)))
    gradients = add_products(writer, places, [(loss, one)], names, Problems(model))
    return writer.result(), gradients


def add_products(
    writer: Writer,
    places: Sequence[int],
    seeds: Iterable[tuple[str, str]],
    names: Sequence[str],
    problems: Problems,
) -> dict[str, str]:
    """Add nodes to `writer` that carry gradients back through its nodes of indices `places`.

    seeds: pairs of a value's name and its gradient's, from which this begins. Return {x: gradient's
    name} of each x in `names` that the seeds depend on. problems: collects, then raises as one
    error, the nodes whose gradient cannot be made.
    """
    gradients = _Backward(writer, places, names, problems).run(seeds)
    return {name: gradients[name] for name in names if name in gradients}


class _Backward:
    """One backward pass over the nodes of indices `places` in `writer`, for the values `names`.

    moving: names of values that depend on `names`, so that a gradient has to pass through them.
    parts: by a value's name, the names of gradients that its readers gave, to be added up.
    """

    def __init__(
        self, writer: Writer, places: Sequence[int], names: Sequence[str], problems: Problems
    ) -> None:
        self._places = places
        self.writer, self.problems = writer, problems
        self.moving = dependents([writer.forward[i] for i in places], writer.types, names)
        self.parts: dict[str, list[str]] = {}

    def run(self, seeds: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Add the nodes; return {value's name: its gradient's name}.

        seeds: pairs (name of a value, name of its gradient) to begin with.
        """
        for name, gradient in seeds:
            self.parts.setdefault(name, []).append(gradient)
        self._refuse_without_rules()
        gradients: dict[str, str] = {}
        for place in reversed(self._places):
            self._node(place, gradients)
        self.problems.refuse()
        return gradients | {name: self._sum(name) for name in self.parts if name not in gradients}

    def _refuse_without_rules(self) -> None:
        """Refuse the graph, naming all nodes without a rule between the parameters and seeds."""
        reached = set(self.parts)
        for node in (self.writer.forward[i] for i in reversed(self._places)):
            moving = self.moving.intersection(node.inputs)
            if moving and not reached.intersection(node.outputs).isdisjoint(self.moving):
                reached |= moving
                try:
                    _rule_of(node)
                except ArgumentError as error:
                    self.problems.add(node.title, error)
        self.problems.refuse()

    def _node(self, place: int, gradients: dict[str, str]) -> None:
        """Add the nodes of one node's rule; put its outputs' gradients, now whole, in `gradients`.

        place: the node's index in writer.forward. gradients: {value's name: its gradient's name}.
        All readers of the outputs come later in the graph, so that they are done.
        """
        node = self.writer.forward[place]
        for name in node.outputs:
            if name in self.parts:
                gradients[name] = self._sum(name)
        wanted = tuple(name in self.moving for name in node.inputs)
        if not any(wanted) or self.moving.intersection(node.outputs).isdisjoint(gradients):
            return
        try:
            dys = [gradients.get(name, "") for name in node.outputs]
            results = _rule_of(node)(Site(self.writer, place, dys, wanted))
        except ArgumentError as error:
            self.problems.add(node.title, error)
            return
        except Exception as error:  # of a damaged node: rules do not look for what cannot be run
            raise_if_from_handler(error)
            self.problems.add(node.title, f"its gradient cannot be made: {error}")
            return
        for name, is_wanted, result in zip(node.inputs, wanted, results, strict=False):
            if is_wanted and result is not None:
                self.parts.setdefault(name, []).append(result.name)
                if name in self.writer.shapes:  # ONNX Runtime's MaxPoolGrad asks the graph for it
                    self.writer.shapes.setdefault(result.name, self.writer.shapes[name])

    def _sum(self, name: str) -> str:
        """Return the name of a value's gradient, a node that sums its parts if there are several"""
        parts = self.parts[name]
        if len(parts) == 1:
            return parts[0]
        if name in self.writer.sequences:
            return sum_of_sequences(self.writer, parts, name + SUFFIX)
        return self.writer.add("Sum", parts, name + SUFFIX)[0]


def dependents(
    nodes: Iterable[Node], types: Mapping[str, Dtype], names: Collection[str]
) -> set[str]:
    """Return the names of values that have a derivative with respect to those of `names`, too.

    Integers have none, but for those that operators of STRAIGHT round real numbers to.
    """
    moving, straight = set(names), set[str]()  # straight: integers that have a gradient
    for node in nodes:
        if moving.isdisjoint(node.inputs) or node.op_type in ZERO:
            continue
        outputs = set(filter(None, node.outputs))
        if node.op_type in STRAIGHT or not straight.isdisjoint(node.inputs):
            outputs -= {name for name in outputs if types.get(name) == BOOL}
            straight |= {name for name in outputs if not is_real(types.get(name))}
            moving |= outputs
        elif node.op_type in UNDEFINED:
            moving |= outputs
        else:
            moving |= {name for name in outputs if is_real(types.get(name))}
    return moving


def _rule_of(node: Node) -> Rule:
    """Return the rule of a node's operator; ArgumentError with the reason if it has none."""
    rule = RULES.get(node.op_type)
    if rule is not None:
        return rule
    reason = UNDEFINED.get(node.op_type, "no gradient of this operator is known")
    raise ArgumentError(reason)
