# SPDX-License-Identifier: MIT
"""A graph to which nodes are added: their names, constants, and the types that are known."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ...dtypes import Dtype, HostArray
from ..graph import Graph, Node

OPSET = 17  # of ONNX's own operators where the model has none


def is_real(dtype: Dtype | None) -> bool:
    """Return True of a type of real numbers, and of one that is not known."""
    return dtype is None or dtype.kind == "f" or "float" in dtype.name


class Writer:
    """Adds nodes behind those of a graph, `forward`, which may be changed as well.

    parameters: the constants whose values will change.
    """

    def __init__(self, graph: Graph, parameters: Collection[str] = ()) -> None:
        self.graph, self.parameters = graph, frozenset(parameters)
        self.forward = list(graph.nodes)
        self.constants = dict(graph.constants)
        self.types = {**graph.types, **{n: a.dtype for n, a in graph.constants.items()}}
        self.shapes = dict(graph.shapes)
        self._follow_types()
        self.version = max((n.version for n in graph.nodes if n.is_standard), default=OPSET)
        self._nodes: list[Node] = []
        self._names = {name for node in graph.nodes for name in node.outputs}
        self._names |= {item.name for item in graph.inputs} | graph.constants.keys()

    def _follow_types(self) -> None:
        """Take the type of a real input for that of a first result of which nothing is known: ONNX
        infers none behind an operator that is not its own."""
        for node in self.forward:
            known = (self.types[name] for name in node.inputs if name in self.types)
            dtype = next(filter(is_real, known), None)
            if dtype is not None and node.outputs[0]:
                self.types.setdefault(node.outputs[0], dtype)

    def result(self) -> Graph:
        """The graph with all that was added."""
        nodes = (*self.forward, *self._nodes)
        graph = replace(self.graph, nodes=nodes, constants=self.constants)
        return replace(graph, types=self.types, shapes=self.shapes)

    def new_name(self, name: str) -> str:
        """A name that no value has."""
        result, i = name, 0
        while result in self._names:
            i += 1
            result = f"{name}_{i}"
        self._names.add(result)
        return result

    def constant(self, name: str, value: HostArray) -> str:
        """Add an array."""
        name = self.new_name(name)
        self.constants[name], self.types[name] = value, value.dtype
        return name

    def add(
        self,
        op_type: str,
        inputs: Sequence[str],
        name: str,
        *,
        n_outputs: int = 1,
        domain: str = "",
        dtype: Dtype | None = None,
        attributes: Mapping[str, Any] = MappingProxyType({}),
    ) -> tuple[str, ...]:
        """Add a node; the names of its results come back.

        dtype: that of the results, without one that of the first input.
        """
        results = tuple(self.new_name(name) for _ in range(n_outputs))
        version = 1 if domain else self.version
        node = Node(op_type, domain, version, tuple(inputs), results, attributes, results[0])
        self._nodes.append(node)
        dtype = dtype or next((self.types[n] for n in inputs if n in self.types), None)
        if dtype is not None:
            self.types.update(dict.fromkeys(results, dtype))
        return results
