# SPDX-License-Identifier: MIT
"""What was saved as it is, and what as codes, for each graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .plan import Saved


class Account:
    """One line for each saved tensor of each graph that was compiled."""

    def __init__(self) -> None:
        self._graphs: list[list[dict[str, Any]]] = []

    def note(self, plan: Sequence[Saved]) -> None:
        self._graphs.append([_line(one) for one in plan])

    def report(self) -> dict[str, Any]:
        """Bytes of all graphs, and the tensors of each."""
        lines = [line for graph in self._graphs for line in graph]
        stays = [line for line in lines if line["as"] == "itself"]
        return {
            "before": sum(line["before"] for line in lines if line["reason"] not in ANYWAY),
            "after": sum(line["after"] for line in lines if line["reason"] not in ANYWAY),
            "coded": _by("as", [line for line in lines if line["as"] != "itself"]),
            "as_it_is": _by("reason", stays),
            "graphs": self._graphs,
        }


ANYWAY = {"parameter", "input"}


def _line(one: Saved) -> dict[str, Any]:
    value = one.forward.meta["val"]
    form = "nothing" if one.is_dropped else "itself" if one.format is None else one.format.name
    return {
        "name": one.forward.name,
        "shape": tuple(map(str, value.shape)),
        "dtype": str(value.dtype).removeprefix("torch."),
        "before": one.nbytes,
        "after": one.coded,
        "as": form,
        "in_place_of": "" if one.is_in_place else one.point.name,
        "reason": one.reason,
    }


def _by(key: str, lines: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for line in lines:
        sums = found.setdefault(line[key], {"tensors": 0, "before": 0, "after": 0})
        sums["tensors"] += 1
        sums["before"] += line["before"]
        sums["after"] += line["after"]
    return found
