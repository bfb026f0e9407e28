# SPDX-License-Identifier: MIT
"""Nodes over constants replaced by what they compute, so that more is known of a graph.

s = Shape(x); n = Gather(s, 0); t = Concat(n, [-1])    becomes, for x of shape (4, 3), t = [4, -1]

Of an x of shape ("n", 3) it stays, but Resize(x, sizes=[n, 6]) is known to have shape ("n", 6).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from ..dtypes import HostArray
from ..errors import OpError
from .graph import Extent, Graph, Node, parts_around
from .passes import DRAWING
from .runner import runner_of
from .standard.randoms import DRAWN
from .writing import with_inferred

MOST = 4096  # elements of a folded result
MOST_AXES = 16  # of a shape
RESHAPING = {"Reshape": 1, "Resize": 3}  # index of the input that is the result's shape
Extents = tuple[Extent, ...]


def fold(graph: Graph, parameters: Collection[str]) -> Graph:
    """Return the graph with nodes over constants replaced by constants, and more shapes known.

    parameters: names of constants that will change, and so are not folded.
    """
    known = {n: a for n, a in graph.constants.items() if n not in parameters and a.size <= MOST}
    outputs = {item.name for item in graph.outputs}
    nodes, made = [], {}
    for node in graph.nodes:
        result = None if outputs.intersection(node.outputs) else _result(node, graph, known)
        if result is None:
            nodes.append(node)
        else:
            made[node.outputs[0]] = known[node.outputs[0]] = result
    folded = replace(graph, nodes=tuple(nodes), constants={**graph.constants, **made})
    if any(_known_branch(node, known) for node in nodes):
        return fold(with_inferred(_with_branches(folded, known)), parameters)
    return replace(folded, shapes={**graph.shapes, **_shapes_of_results(folded)})


def _known_branch(node: Node, known: Mapping[str, HostArray]) -> Graph | None:
    """Return the branch that an If runs if its condition is constant, else None.

    known: constants by name. Damaged nodes have None, and are refused elsewhere.
    """
    condition = known.get(node.inputs[0]) if node.op_type == "If" and node.inputs else None
    if condition is None or condition.size != 1 or not node.is_standard:
        return None
    branch = parts_around(node).get("then_branch" if condition.all() else "else_branch")
    fits = branch is not None and len(branch.outputs) == len(node.outputs)
    return branch if fits and all(node.outputs) else None


def _with_branches(graph: Graph, known: Mapping[str, HostArray]) -> Graph:
    """Return the graph with the nodes of the branch that runs in place of each If of a constant
    condition; values inside get the prefix `<the If's first output>/`."""
    nodes, constants = [], dict(graph.constants)
    for node in graph.nodes:
        branch = _known_branch(node, known)
        if branch is None:
            nodes.append(node)
            continue
        own = {name for inner in branch.nodes for name in inner.outputs if name}
        names = {name: f"{node.outputs[0]}/{name}" for name in own | branch.constants.keys()}
        constants |= {names[name]: array for name, array in branch.constants.items()}
        for inner in branch.nodes:
            ends = [
                tuple(names.get(name, name) for name in each)
                for each in (inner.inputs, inner.outputs)
            ]
            nodes.append(replace(inner, inputs=ends[0], outputs=ends[1]))
        for name, item in zip(node.outputs, branch.outputs, strict=True):
            source = names.get(item.name, item.name)
            nodes.append(Node("Identity", "", node.version, (source,), (name,), {}, node.name))
    return replace(graph, nodes=tuple(nodes), constants=constants)


# ---- lists of extents, some of which are names ---------------------------------------------------


def _shapes_of_results(graph: Graph) -> dict[str, Extents]:
    """Return shapes, by name, of results of Reshape and Resize whose shape input is known.

    It is followed element by element (`lists`), also where an extent is a name: ("n", 6).
    """
    lists: dict[str, Extents] = {}
    for name, array in graph.constants.items():
        if array.dtype.kind == "i" and array.ndim < 2 and array.size <= MOST_AXES:
            lists[name] = tuple(map(int, array.reshape(-1)))
    shapes = {}
    for node in filter(_has_one_result, graph.nodes):
        extents = _list(node, graph, lists)
        if extents is not None:
            lists[node.outputs[0]] = extents
        place = RESHAPING.get(node.op_type, len(node.inputs))
        wanted = lists.get(node.inputs[place]) if place < len(node.inputs) else None
        if wanted and all(n is not None and n not in (0, -1) for n in wanted):
            shapes[node.outputs[0]] = wanted
    return {name: shape for name, shape in shapes.items() if _is_news(graph, name, shape)}


def _has_one_result(node: Node) -> bool:
    return node.is_standard and len(node.outputs) == 1 and bool(node.inputs)


def _is_news(graph: Graph, name: str, shape: Extents) -> bool:
    """Return True of a shape that contradicts no number that the graph knows for a value."""
    known = graph.shapes.get(name)
    if known is None or len(known) != len(shape):
        return known is None
    return all(n == m or not isinstance(n, int) for n, m in zip(known, shape, strict=True))


def _list(node: Node, graph: Graph, lists: Mapping[str, Extents]) -> Extents | None:
    """Return the elements of a node's result, a list of extents; None where they are not known.

    lists: such elements by name.
    """
    if node.op_type == "Shape":
        shape = graph.shapes.get(node.inputs[0])
        first, end = node.attributes.get("start", 0), node.attributes.get("end")
        return None if shape is None else shape[first:end]
    operands = [lists.get(name) for name in node.inputs]
    if None in operands:
        return None
    x, *rest = [each for each in operands if each is not None]
    if node.op_type == "Cast" or (node.op_type in ("Squeeze", "Unsqueeze") and len(x) == 1):
        return x
    if node.op_type == "Concat":
        return tuple(n for each in operands if each is not None for n in each)
    numbers = [n for each in rest for n in each if isinstance(n, int)]
    if len(numbers) < sum(map(len, rest)):
        return None
    if node.op_type == "Gather" and all(-len(x) <= i < len(x) for i in numbers):
        return tuple(x[i] for i in numbers)
    if node.op_type == "Slice" and len(numbers) == len(rest) and 0 not in numbers[3:]:
        return x[numbers[0] : numbers[1] : numbers[3] if len(numbers) > 3 else 1]
    return None


# ---- what nodes compute --------------------------------------------------------------------------


def _result(node: Node, graph: Graph, known: Mapping[str, HostArray]) -> HostArray | None:
    """Return a node's result if all its inputs are in `known`; None if not, if large, or it fails.

    A Shape needs only the shape of its input.
    """
    draws = node.op_type in DRAWING or node.op_type in DRAWN
    if not node.is_standard or draws or len(node.outputs) != 1:
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
    """Return True of integers whose product is above MOST, as that of a large shape."""
    if array is None or array.dtype.kind not in "iu":
        return False
    return math.prod(max(abs(int(n)), 1) for n in array.reshape(-1)) > MOST
