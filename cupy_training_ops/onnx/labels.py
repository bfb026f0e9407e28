# SPDX-License-Identifier: MIT
"""Labels beyond the classes there are: refused where it costs no wait for the device.

An operator makes NaN of them, and only looks for them where it is told to. NumPy's arrays are
looked at by the operator itself; those that a GPU is given are looked at before they go there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..dtypes import HostArray
from ..errors import ArgumentError, cut
from .graph import Graph, Node
from .kinds import Run, Runner

LOSSES = ("SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossInternal", "SparseSoftmaxCrossEntropy")
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
        self._losses = {node.inputs[1]: node for node in losses if node.inputs[1] in names}
        self._ranges: dict[str, tuple[int, int] | None] = {}
        self.classes: dict[str, int] = {}  # of the last run

    def runners(self, graph: Graph, found: Mapping[int, Runner]) -> dict[int, Runner]:
        """The same, with losses that look at the labels' range."""
        checked = {id(node) for node in self._losses.values()}
        return {
            i: self._checking(graph.nodes[i], known) if id(graph.nodes[i]) in checked else known
            for i, known in found.items()
        }

    def _checking(self, node: Node, known: Runner) -> Runner:
        return replace(known, make=lambda xp: partial(self._run, node, known.make(xp)))

    def _run(self, node: Node, run: Run, values: list[Any], **given: Any) -> Any:
        self.classes[node.inputs[1]] = values[0].shape[1]
        self._check(node.inputs[1], values[0].shape[1])
        return run(values, **given)

    def look_at(self, name: str, value: Any) -> None:
        """Note what is fed under a name."""
        node = self._losses.get(name)
        if node is None:
            return
        self._ranges[name] = None
        if not hasattr(value, "__cuda_array_interface__"):
            with contextlib.suppress(ValueError):  # which whoever feeds it is told
                self._ranges[name] = _range(np.asarray(value), node.attributes.get("ignore_index"))

    def check(self, classes: Mapping[str, int]) -> None:
        """Refuse what was looked at last, of which there are so many classes."""
        for name, n in classes.items():
            self._check(name, n)

    def _check(self, name: str, classes: int) -> None:
        found = self._ranges.get(name)
        if found is not None and not (found[0] >= 0 and found[1] < classes):
            wrong = found[0] if found[0] < 0 else found[1]
            expected = f"labels from 0 to {classes - 1}"
            raise ArgumentError(f"{cut(name)}: expected {expected}, got {wrong}")


def _range(labels: HostArray, ignored: int | None) -> tuple[int, int] | None:
    """The least and the largest; None where there are none."""
    counted = labels if ignored is None else labels[labels != ignored]
    if labels.dtype.kind not in "iu" or not counted.size:
        return None
    return int(counted.min()), int(counted.max())
