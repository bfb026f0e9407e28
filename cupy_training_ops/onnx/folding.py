# SPDX-License-Identifier: MIT
"""Nodes over constants replaced by what they compute, so that more is known of a graph.

s = Shape(x); n = Gather(s, 0); t = Concat(n, [-1])    becomes, for x of shape (4, 3), t = [4, -1]
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from ..dtypes import HostArray
from ..errors import OpError
from .graph import Graph, Node
from .passes import DRAWING
from .runner import runner_of

MOST = 4096  # elements of a result


def fold(graph: Graph, parameters: Collection[str]) -> Graph:
    """The graph with results of constants other than `parameters` among its constants."""
    known = {n: a for n, a in graph.constants.items() if n not in parameters and a.size <= MOST}
    outputs = {item.name for item in graph.outputs}
    nodes, made = [], {}
    for node in graph.nodes:
        result = None if outputs.intersection(node.outputs) else _result(node, graph, known)
        if result is None:
            nodes.append(node)
        else:
            made[node.outputs[0]] = known[node.outputs[0]] = result
    return replace(graph, nodes=tuple(nodes), constants={**graph.constants, **made})


def _result(node: Node, graph: Graph, known: Mapping[str, HostArray]) -> HostArray | None:
    """What a node computes; None where that is not known, much, or fails, as it will as it runs."""
    if not node.is_standard or node.op_type in DRAWING or len(node.outputs) != 1:
        return None
    if node.op_type == "Shape":
        shape = graph.shapes.get(node.inputs[0])
        if shape is None or not all(isinstance(n, int) for n in shape):
            return None
        whole = np.array(shape, np.int64)
        return whole[node.attributes.get("start", 0) : node.attributes.get("end")]
    if not node.inputs or not all(name in known for name in node.inputs if name):
        return None
    arrays = [known[name] if name else None for name in node.inputs]
    try:
        runner = runner_of(node)
        if runner.grows and any(_says_much(array) for array in arrays):
            return None
        with np.errstate(all="ignore"):
            (result,) = runner.make(np)([a if a is None else a.copy() for a in arrays])
    except (OpError, TypeError, ValueError, IndexError, OverflowError, ZeroDivisionError):
        return None
    return result if isinstance(result, np.ndarray) and result.size <= MOST else None


def _says_much(array: HostArray | None) -> bool:
    """Return True of integers that may be a large shape."""
    if array is None or array.dtype.kind not in "iu":
        return False
    return math.prod(max(abs(int(n)), 1) for n in array.reshape(-1)) > MOST
