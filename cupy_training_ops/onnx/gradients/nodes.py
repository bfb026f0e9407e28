# SPDX-License-Identifier: MIT
"""ONNX's Gradient nodes, replaced by the nodes that compute gradients.

y = Mul(a, b); dy_da, dy_db = Gradient(a, b, xs=["a", "b"], y="y")
dy_da = Mul(y_grad, b), dy_db = Mul(y_grad, a), y_grad = 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...dtypes import Dtype
from ...errors import ArgumentError, cut
from ..graph import Graph, Node, Problems, check_attributes, places_of, sort_nodes
from ..passes import without_constants
from ..writing import with_inferred
from .builder import SUFFIX, add_products, with_rules
from .rules import INT64
from .writer import Writer, zeros_of

DOMAIN = "ai.onnx.preview.training"


def with_gradients(graph: Graph, problems: Problems) -> Graph:
    """Return the graph with nodes that compute gradients in place of each Gradient node.

    A Gradient node says d y / d x of each x of `xs`, with those of `zs` taken as constants; y has
    one element. Nodes that do not allow this are added to `problems`.
    """
    if not any(map(_is_gradient, graph.nodes)):
        return graph
    graph = with_inferred(with_rules(without_constants(graph, problems)))
    while not problems.lines:
        node = next(filter(_is_gradient, graph.nodes), None)
        if node is None:
            break
        try:
            node = _innermost(graph, node)
            graph = _Gradient(graph, node).replaced(problems)
        except ArgumentError as error:
            problems.add(node.title, error)
    return graph


def _is_gradient(node: Node) -> bool:
    return node.op_type == "Gradient" and node.domain == DOMAIN


def _innermost(graph: Graph, node: Node) -> Node:
    """Return a Gradient node of the graph that `node`'s y depends on, itself on none; or `node`.

    So gradients of gradients are made from the inside.
    """
    passed = {node.outputs}
    while True:
        _, ends, y = _names(node)
        makers = (graph.nodes[i] for i in places_of(graph.nodes, [y], ends))
        inner = next(filter(_is_gradient, makers), None)
        if inner is None:
            return node
        if inner.outputs in passed:
            raise ArgumentError("its y depends on its own gradient")
        passed.add(inner.outputs)
        node = inner


def _names(node: Node) -> tuple[list[str], list[str], str]:
    """Return the attributes xs, xs + zs, and y of a Gradient node, all names; refuse others."""
    kinds = {"xs": tuple[str, ...], "zs": tuple[str, ...], "y": str}
    unknown = sorted(node.attributes.keys() - kinds.keys())
    if unknown:
        raise ArgumentError(f"unknown attributes {cut(', '.join(unknown))}")
    known = check_attributes(node.attributes, kinds)
    for name in ("xs", "y"):
        if not known.get(name):
            raise ArgumentError(f"its attribute {name} is missing")
    xs = list(known["xs"])
    ends = [*xs, *known.get("zs", ())]
    if len(node.inputs) != len(ends) or not all(node.inputs):
        raise ArgumentError(f"expected an input for each of xs and zs, {len(ends)} in all")
    if len(node.outputs) > len(xs):
        raise ArgumentError(f"expected at most {len(xs)} outputs, got {len(node.outputs)}")
    return xs, ends, known["y"]


class _Gradient:
    """One Gradient node, to be replaced in its graph.

    Its attributes: _xs, values to differentiate by; _ends, these and zs; _y, the value itself.
    """

    def __init__(self, graph: Graph, node: Node) -> None:
        self._node, (self._xs, self._ends, self._y) = node, _names(node)
        self._writer = Writer(graph.with_nodes(n for n in graph.nodes if n is not node))
        known = self._writer.names | {""}
        unknown = [name for name in (*self._ends, self._y) if name not in known]
        if unknown:
            raise ArgumentError(f"nothing makes {cut(', '.join(unknown))}, which it names")
        self._writer.names |= {*node.outputs}

    def replaced(self, problems: Problems) -> Graph:
        """Return the graph in which other nodes compute the node's outputs.

        If the node's inputs are other values than those named by xs and zs, or one of these depends
        on another, the nodes from them to y are copied, over the node's inputs. Nodes that then
        read each other in a circle are added to `problems`.
        """
        writer = self._writer
        places = places_of(writer.forward, [self._y], self._ends)
        made = {name for i in places for name in writer.forward[i].outputs}
        names: dict[str, str] = {}
        if list(self._node.inputs) != self._ends or not made.isdisjoint(self._ends):
            names = self._copy(places)
            places = [*range(len(writer.forward) - len(places), len(writer.forward))]
        xs = [names.get(name, name) for name in self._xs]
        y = self._number(names.get(self._y, self._y), places)
        one = writer.constant(y + SUFFIX, np.ones((), self._dtype(y)))
        words = Problems(f"the gradient of {cut(self._y)!r}")
        gradients = add_products(writer, places, [(y, one)], xs, words)
        pairs = [(x, name) for x, name in zip(xs, self._node.outputs, strict=False) if name]
        results = [gradients.get(x) or zeros_of(writer, x) for x, _ in pairs]
        ends = [
            Node("Identity", "", writer.version, (result,), (name,))
            for result, (_, name) in zip(results, pairs, strict=True)
        ]
        graph = writer.result()
        known = {item.name for item in graph.inputs} | graph.constants.keys()
        types = {**graph.types, **{name: self._dtype(x) for x, name in pairs}}
        nodes = sort_nodes((*graph.nodes, *ends), known, problems)
        return replace(graph, nodes=nodes, types=types)

    def _copy(self, places: Sequence[int]) -> dict[str, str]:
        """Add copies of the nodes of indices `places`, over the node's inputs as xs and zs.

        Return {value's name: the name of its copy}.
        """
        writer = self._writer
        names = {
            end: self._forward("Identity", (name,), end, name)
            for end, name in zip(self._ends, self._node.inputs, strict=True)
        }
        for node in [writer.forward[i] for i in places]:
            outputs = [name and writer.new_name(name) for name in node.outputs]
            inputs = tuple(names.get(name, name) for name in node.inputs)
            writer.forward.append(replace(node, inputs=inputs, outputs=tuple(outputs)))
            for name, copy in zip(node.outputs, outputs, strict=True):
                if name not in self._ends:
                    names[name] = copy
                writer.declare_like(copy, name)
        return names

    def _number(self, y: str, places: list[int]) -> str:
        """Return the name of y as a scalar, reshaped if need be by a node added to `places`.

        A y of more elements is refused: here, or by the Reshape as it runs.
        """
        writer = self._writer
        shape = np.shape(writer.constants[y]) if y in writer.constants else writer.shapes.get(y)
        if any(isinstance(n, int) and n != 1 for n in shape or ()):
            raise ArgumentError(f"y: expected one number, got {cut(self._y)!r} of shape {shape}")
        if shape == ():
            return y
        places.append(len(writer.forward))
        extents = writer.constant(f"{y}_extents", np.array([], INT64))
        number = self._forward("Reshape", (y, extents), y, y)
        writer.shapes[number] = ()
        return number

    def _forward(self, op_type: str, inputs: tuple[str, ...], name: str, like: str) -> str:
        """Add a forward node, whose result is like another value; return the result's name."""
        writer, result = self._writer, self._writer.new_name(name)
        title = f"{self._y} of its gradient"
        writer.forward.append(Node(op_type, "", writer.version, inputs, (result,), {}, title))
        writer.declare_like(result, like)
        return result

    def _dtype(self, name: str) -> Dtype:
        dtype = self._writer.types.get(name)
        if dtype is None:
            raise ArgumentError(f"it needs the type of {cut(name)!r}")
        return dtype
