# SPDX-License-Identifier: MIT
"""What runs the nodes of a model, and what nothing runs; nothing is run to say it."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from .graph import Node
from .kinds import Runner
from .passes import prepared
from .program import runners
from .reading import Source, read
from .type_checks import check_types

NOTHING = "-"


class Kind(NamedTuple):
    """Nodes of one operator that one thing runs."""

    op_type: str
    domain: str
    by: str  # an operator's function, or the array module
    n_nodes: int


class Listing(NamedTuple):
    """Kinds of nodes by name, and why a session would refuse the model."""

    kinds: tuple[Kind, ...]
    problems: tuple[str, ...]

    @property
    def n_nodes(self) -> int:
        """All of them."""
        return sum(kind.n_nodes for kind in self.kinds)


def listed(model: Source) -> Listing:
    """A model's nodes, those among them that a session adds."""
    graph, _, problems = read(model)
    graph = prepared(graph, problems, None)
    found = runners(graph, problems)
    check_types(graph, found, problems)
    counts = Counter(_key(node, found.get(i)) for i, node in enumerate(graph.nodes))
    kinds = tuple(Kind(*key, count) for key, count in sorted(counts.items()))
    return Listing(kinds, tuple(problems.found))


def _key(node: Node, runner: Runner | None) -> tuple[str, str, str]:
    by = NOTHING if runner is None else "NumPy or CuPy"
    if runner is not None and runner.op is not None:
        by = f"cto.{runner.op.function_name}"
    return node.op_type, node.domain or "ai.onnx", by
