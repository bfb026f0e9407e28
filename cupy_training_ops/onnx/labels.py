# SPDX-License-Identifier: MIT
"""Labels beyond the classes there are: refused where it costs no wait for the device.

An operator makes NaN of them, and only looks for them where it is told to. NumPy's arrays are
looked at by the operator itself; those that a GPU is given are looked at before they go there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..dtypes import HostArray
from ..errors import ArgumentError, cut, pass_on
from .graph import Graph, Node
from .kinds import Run, Runner

LOSSES = ("SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossInternal", "SparseSoftmaxCrossEntropy")
CLASSES_LAST = LOSSES[2:]
BY_LABELS = LOSSES[::2]  # whose label to be ignored is an attribute


def with_checks(graph: Graph) -> Graph:
    """The graph whose losses refuse labels out of range."""
    return graph.with_nodes(
        replace(node, attributes={**node.attributes, "check": 1})
        if node.op_type in LOSSES
        else node
        for node in graph.nodes
    )


class Labels:
    """What labels from the host a session was given, and how many classes there are."""

    def __init__(self, graph: Graph) -> None:
        names = {item.name for item in graph.inputs}
        losses = [node for node in graph.nodes if node.op_type in BY_LABELS]
        self._losses = [node for node in losses if node.inputs[1] in names]
        self._ranges: dict[str, tuple[int, int] | None] = {}  # of each loss, by its output
        self.classes: dict[str, int] = {}  # the same, of the last run

    def runners(self, graph: Graph, found: Mapping[int, Runner]) -> dict[int, Runner]:
        """The same, with losses that look at the labels' range."""
        checked = {id(node) for node in self._losses}
        return {
            i: self._checking(graph.nodes[i], known) if id(graph.nodes[i]) in checked else known
            for i, known in found.items()
        }

    def _checking(self, node: Node, known: Runner) -> Runner:
        return replace(known, make=lambda xp: partial(self._run, node, known.make(xp)))

    def _run(self, node: Node, run: Run, values: list[Any], **given: Any) -> Any:
        n = values[0].shape[-1 if node.op_type in CLASSES_LAST else 1]
        self.classes[node.outputs[0]] = n
        self._check(node, n)
        return run(values, **given)

    def look_at(self, name: str, value: Any) -> None:
        """Note what is fed under a name."""
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
        """Refuse what was looked at last, of which each loss has so many classes."""
        for node in self._losses:
            if node.outputs[0] in classes:
                self._check(node, classes[node.outputs[0]])

    def _check(self, node: Node, classes: int) -> None:
        found = self._ranges.get(node.outputs[0])
        if found is not None and not (found[0] >= 0 and found[1] < classes):
            wrong = found[0] if found[0] < 0 else found[1]
            expected = f"labels from 0 to {classes - 1}"
            raise ArgumentError(f"{cut(node.inputs[1])}: expected {expected}, got {wrong}")


def _range(labels: HostArray, ignored: int | None) -> tuple[int, int] | None:
    """The least and the largest; None where there are none."""
    counted = labels if ignored is None else labels[labels != ignored]
    if labels.dtype.kind not in "iu" or not counted.size:
        return None
    return int(counted.min()), int(counted.max())
