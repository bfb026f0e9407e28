# SPDX-License-Identifier: MIT
"""Gradients that have another shape than their parameter.

Upstream's gradient of Where is not summed over what a parameter was repeated along, and its own
kernels add a part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import ArgumentError, cut
from .graph import Extent, Graph, Node
from .kinds import Run, Runner
from .schedule import ACCUMULATORS

BUFFER = "_grad.accumulation.buffer"
REPEATING = ("Add", "Div", "Mul", "Sub", "Where")  # operators that repeat what they take


def refuse_unsummed(graph: Graph, parameters: Mapping[str, Any]) -> None:
    """Refuse a graph that says that a gradient is larger than its parameter."""
    makers = _makers(graph)
    known = {**graph.shapes, **{name: array.shape for name, array in graph.constants.items()}}
    for node in graph.nodes:
        maker = makers.get(node.inputs[1]) if node.op_type in ACCUMULATORS else None
        parameter = parameters.get(node.inputs[0].removesuffix(BUFFER))
        if parameter is None or maker is None or maker.op_type not in REPEATING:
            continue
        for shape in filter(None, map(known.get, maker.inputs)):
            if not _reaches(shape, parameter.shape):
                expected = f"expected shape {parameter.shape}, got more than {_shown(shape)}"
                raise ArgumentError(f"TrainingSession: {_words(node, maker)}: {expected}")


def runners(graph: Graph, found: Mapping[int, Runner]) -> dict[int, Runner]:
    """The same, with accumulators that refuse such gradients by their names."""
    makers = _makers(graph)
    return {
        i: _checking(graph.nodes[i], makers.get(graph.nodes[i].inputs[1]), known)
        if graph.nodes[i].op_type in ACCUMULATORS
        else known
        for i, known in found.items()
    }


def _checking(node: Node, maker: Node | None, known: Runner) -> Runner:
    words = _words(node, maker)
    return replace(known, make=lambda xp: partial(_run, words, known.make(xp)))


def _run(words: str, run: Run, values: list[Any], **given: Any) -> Any:
    buffer, value = values[:2]
    if buffer.shape != value.shape:
        raise ArgumentError(f"{words}: expected shape {buffer.shape}, got {value.shape}")
    return run(values, **given)


def _words(node: Node, maker: Node | None) -> str:
    origin = f", which {maker.title} makes" if maker else ""
    return f"the gradient of parameter {cut(node.inputs[0].removesuffix(BUFFER))!r}{origin}"


def _makers(graph: Graph) -> dict[str, Node]:
    """Which node makes what, beyond those that give it another name."""
    makers: dict[str, Node] = {}
    for node in graph.nodes:
        is_same = node.op_type == "Identity" and node.inputs[0] in makers
        origin = makers[node.inputs[0]] if is_same else node
        makers.update(dict.fromkeys(node.outputs, origin))
    return makers


def _reaches(shape: tuple[Extent, ...], whole: tuple[int, ...]) -> bool:
    """Return True if an array of a shape may be repeated to have another."""
    if len(shape) > len(whole):
        return False
    pairs = zip(reversed(shape), reversed(whole), strict=False)
    return all(not isinstance(n, int) or n in (1, m) for n, m in pairs)


def _shown(shape: tuple[Extent, ...]) -> str:
    return cut(f"({', '.join('?' if n is None else str(n) for n in shape)})")
