# SPDX-License-Identifier: MIT
"""Extents that a model declares of its inputs, which hold for what is fed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import cut, refuse
from .graph import Extent, Graph
from .labels import CLASSES_LAST, LOSSES


class Extents:
    """What a graph declares, but for labels whose loss asks for another shape.

    Upstream declares labels of pixels as it does scores, without their last dimension: the loss
    alone decides then. Names of extents say nothing but in training: ONNX Runtime does not compare
    them, and some models use one for several, but a target of another batch would be repeated.
    """

    def __init__(self, graph: Graph) -> None:
        self.names_hold = False
        loose = set(_contradicted(graph))
        self._declared = {
            item.name: item.shape
            for item in graph.inputs
            if item.shape and not item.is_sequence and item.name not in loose
        }

    def check(self, arrays: Mapping[str, Any]) -> None:
        """Refuse arrays of other extents; each has the declared rank."""
        known: dict[str, int] = {}
        for name, array in arrays.items():
            for place, expected in enumerate(self._declared.get(name, ())):
                extent = array.shape[place]
                wanted = expected
                if type(expected) is str:
                    wanted = known.setdefault(expected, extent) if self.names_hold else None
                if wanted is not None and wanted != extent:
                    named = "" if wanted == expected else f" ({cut(str(expected))})"
                    words = f"{wanted}{named} as extent {place}"
                    refuse("Session", cut(name), words, f"shape {array.shape}")


def _contradicted(graph: Graph) -> Iterator[str]:
    """Labels that are declared otherwise than scores, or whose scores nothing is known of."""
    declared = {item.name: item.shape for item in graph.inputs}
    for node in graph.nodes:
        labels = declared.get(node.inputs[1]) if node.op_type in LOSSES else None
        if labels is not None and labels != _of_labels(graph, node):
            yield node.inputs[1]


def _of_labels(graph: Graph, node: Any) -> tuple[Extent, ...] | None:
    """The shape of a loss's labels by that of its scores, or of the logarithms it makes of them."""
    for name in (node.inputs[0], *node.outputs[1:2]):
        scores = graph.shapes.get(name)
        if scores is not None:
            return scores[:-1] if node.op_type in CLASSES_LAST else (scores[:1] + scores[2:])
    return None
