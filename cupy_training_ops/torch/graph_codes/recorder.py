# SPDX-License-Identifier: MIT
"""Functions of tensors written into a graph, by running them on the fake tensors of its nodes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table
from torch.fx import Graph, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map


def record(graph: Graph, before: Node, function: Callable[..., Any], *inputs: Node) -> Any:
    """Write a function before a node; its results as nodes."""
    recorder = _Recorder(graph, inputs)
    fake = inputs[0].meta["val"].fake_mode
    with graph.inserting_before(before), torch.no_grad(), fake, recorder:
        results = function(*(node.meta["val"] for node in inputs))
    return tree_map(recorder.node_of, results)


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Notes each call of an operator as a node."""

    def __init__(self, graph: Graph, inputs: tuple[Node, ...]) -> None:
        super().__init__()
        self._graph = graph
        self._nodes = {id(node.meta["val"]): node for node in inputs}
        self._sizes: dict[str, Node] = {}
        self._alive: list[Tensor] = []  # else another tensor may have the id of one
        self._inputs = inputs
        self._decompositions = select_decomp_table()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if func.namespace == "aten":  # as to.dtype, which compilers know in other words alone
            with self:
                decomposed = self._decompositions.get(func, func.decompose)
                result = decomposed(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, (Tensor, list, tuple)):
            return result  # of a question, as for the device
        node = self._graph.call_function(
            func, tree_map(self.node_of, args), tree_map(self.node_of, kwargs or {})
        )
        node.meta["val"] = result
        self._alive += tree_leaves(result)
        if isinstance(result, Tensor):
            self._nodes[id(result)] = node
        else:
            for i, one in enumerate(result):
                item = self._graph.call_function(operator.getitem, (node, i))
                item.meta["val"] = one
                self._nodes[id(one)] = item
        return result

    def node_of(self, value: object) -> object:
        """The node that stands for a tensor or a symbolic size; what is neither is itself."""
        if isinstance(value, Tensor):
            return self._nodes[id(value)]
        if isinstance(value, torch.SymInt):
            return self._size(value)
        return value

    def _size(self, value: torch.SymInt) -> object:
        """A node for the size of a dimension of an input."""
        key = str(value)
        if key not in self._sizes:
            places = (
                (node, dim)
                for node in self._inputs
                for dim, size in enumerate(node.meta["val"].shape)
                if str(size) == key
            )
            node, dim = next(places)
            size = self._graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
            size.meta["val"] = value
            self._sizes[key] = size
        return self._sizes[key]
