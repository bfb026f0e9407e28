# SPDX-License-Identifier: MIT
"""Saved values that follow from others which wait as codes, as GELU's result from its operand.

To compute them again from the decoded values moves as many bytes as to decode codes of their own,
and neither these nor an encoder are needed. Rows of an embedding are looked up again, which is
exact and needs no codes at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Graph, Node

from .consumers import MULTIPLIES, SMOOTH, SUMS, VIEWS, is_tensor, origin, packet, packets, prims
from .formats import INT4_SIGNED, INT8_SIGNED
from .plan import ANYWAY, SHARED, SMALL, Saved, numel_of
from .rewrite import first_user, put_out

SIGNED = {INT8_SIGNED, INT4_SIGNED}  # whose signs, computed again, might be others
MOST_SOURCES = 2  # of the value's own size
LOOKUPS = packets("embedding")
EXACT = LOOKUPS | VIEWS | MULTIPLIES | SUMS | {prims.iota}  # what is cheap to do twice
STAYS = ANYWAY | {SHARED, SMALL}


def compute_again(
    forward: Graph, backward: Graph, plan: Sequence[Saved], parameters: set[Node], n_outputs: int
) -> tuple[Node, ...]:
    """Take such values out of what is saved, and return them."""
    finder = _Images(backward, plan, parameters)
    places: dict[Node, tuple[Node, ...]] = {}
    for one in plan:
        chain = finder.lookup(one) or finder.chain(one)
        if chain:
            places[one.forward] = finder.write(one, chain)
    if places:
        put_out(forward, places, n_outputs)
    return tuple(places)


class _Images:
    """Looks for values and writes them into the backward graph."""

    def __init__(self, backward: Graph, plan: Sequence[Saved], parameters: set[Node]) -> None:
        self._graph, self._parameters = backward, parameters
        self._there = {node.name: node for node in backward.find_nodes(op="placeholder")}
        self._coded = {one.forward for one in plan if one.format is not None}

    def lookup(self, one: Saved) -> list[Node]:
        """Nodes that compute a value from rows of parameters, without any codes."""
        chain: list[Node] = []
        if one.reason in STAYS or not self._follow_rows(one.forward, one.forward, chain):
            return []
        return chain if any(packet(node.target) in LOOKUPS for node in chain) else []

    def _follow_rows(self, node: Node, value: Node, chain: list[Node]) -> bool:
        if node in chain:
            return True
        if node in self._parameters and node.op == "placeholder":
            return True
        if node is not value and node.name in self._there:
            if not is_tensor(node) or node in self._coded:
                return False
            return numel_of(node.meta["val"]) < numel_of(value.meta["val"])
        if node.op != "call_function" or packet(node.target) not in EXACT:
            return False
        if not all(self._follow_rows(read, value, chain) for read in node.all_input_nodes):
            return False
        chain.append(node)
        return True

    def chain(self, one: Saved) -> list[Node]:
        """Nodes of the forward graph that compute a value from coded ones, in their order."""
        if one.format is None or one.format in SIGNED or not one.is_in_place:
            return []
        chain: list[Node] = []
        sources: set[Node] = set()
        if not self._follow(one.forward, one.forward, chain, sources):
            return []
        return chain if 0 < len(sources) <= MOST_SOURCES else []

    def _follow(self, node: Node, value: Node, chain: list[Node], sources: set[Node]) -> bool:
        if node in chain or node in sources:
            return True
        if node is not value and node.name in self._there:
            if not is_tensor(node):
                return True
            if numel_of(node.meta["val"]) >= numel_of(value.meta["val"]):
                sources.add(node)
                return node in self._coded
            return True
        if node in self._parameters and node.op == "placeholder":
            return True
        if not self._is_pointwise(node):
            return False
        if not all(self._follow(read, value, chain, sources) for read in node.all_input_nodes):
            return False
        chain.append(node)
        return True

    def _is_pointwise(self, node: Node) -> bool:
        """Return True if codes of what a node reads may stand in for it."""
        if node.op != "call_function" or not is_tensor(node):
            return False
        target = packet(node.target)
        if origin(node) in SMOOTH or target in VIEWS | MULTIPLIES:
            return True
        return target in SUMS and not node.kwargs and any(x in self._parameters for x in node.args)

    def write(self, one: Saved, chain: list[Node]) -> tuple[Node, ...]:
        """Compute a value in the backward graph; the parameters that have to be saved for it."""
        added = []
        copies: dict[Node, Node] = {}
        for read in [read for node in chain for read in node.all_input_nodes]:
            if read in copies or read in chain:
                continue
            if read.name not in self._there:
                with self._graph.inserting_before(one.backward):
                    self._there[read.name] = self._graph.placeholder(read.name)
                self._there[read.name].meta.update(read.meta)
                added.append(read)
            copies[read] = self._there[read.name]
        with self._graph.inserting_before(first_user(self._graph, one.backward)):
            for node in chain:
                copies[node] = self._graph.node_copy(node, copies.__getitem__)
        one.backward.replace_all_uses_with(copies[one.forward])
        self._graph.erase_node(one.backward)
        del self._there[one.forward.name]
        self._coded.discard(one.forward)
        return tuple(added)
