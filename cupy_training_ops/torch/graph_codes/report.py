# SPDX-License-Identifier: MIT
"""Account for each graph: what was saved as it is, and what as codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from .plan import ANYWAY, Saved, nbytes_of


class Account:
    """One line for each saved tensor of each graph that was compiled."""

    def __init__(self) -> None:
        self._graphs: list[list[dict[str, Any]]] = []

    def note(self, plan: Sequence[Saved], recomputed: Sequence[Node]) -> None:
        """Count a graph, with what PyTorch's own choice would have saved beside."""
        lines = [_line(one) for one in plan]
        self._graphs.append(lines + [_line_of_recomputed(node) for node in recomputed])

    def report(self) -> dict[str, Any]:
        """Bytes of all graphs, and the tensors of each."""
        lines = [line for graph in self._graphs for line in graph]
        counted = [line for line in lines if line["reason"] not in ANYWAY]
        stays = [line for line in lines if line["as"] == "itself"]
        return {
            "before": sum(line["before"] for line in counted),
            "after": sum(line["after"] for line in counted),
            "coded": _by("as", [line for line in lines if line["as"] != "itself"]),
            "as_it_is": _by("reason", stays),
            "graphs": self._graphs,
        }


def _line(one: Saved) -> dict[str, Any]:
    form = "made again" if one.is_dropped else "itself" if one.format is None else one.format.name
    return {
        **_describe(one.forward),
        "before": one.nbytes,
        "after": one.bytes_waiting,
        "as": form,
        "in_place_of": "" if one.is_in_place else one.point.name,
        "reason": one.reason,
    }


def _line_of_recomputed(node: Node) -> dict[str, Any]:
    """A value that is computed again."""
    return {
        **_describe(node),
        "before": nbytes_of(node.meta["val"]),
        "after": 0,
        "as": "made again",
        "in_place_of": "",
        "reason": "computed from others",
    }


def _describe(node: Node) -> dict[str, Any]:
    value = node.meta["val"]
    return {
        "name": node.name,
        "shape": tuple(map(str, value.shape)),
        "dtype": str(value.dtype).removeprefix("torch."),
    }


def _by(key: str, lines: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    groups: dict[str, dict[str, int]] = {}
    for line in lines:
        sums = groups.setdefault(line[key], {"tensors": 0, "before": 0, "after": 0})
        sums["tensors"] += 1
        sums["before"] += line["before"]
        sums["after"] += line["after"]
    return groups
