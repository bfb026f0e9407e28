# SPDX-License-Identifier: MIT
"""Write both graphs of a compiled model anew so that saved values wait as codes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch._functorch._aot_autograd.descriptors import (
    SavedForBackwardsAOTOutput,
    SavedForBackwardsNoVcCheckAOTOutput,
)
from torch.fx import Graph, GraphModule, Node

from .formats import Parts, cast
from .plan import Saved
from .recorder import record

NO_CHECK = "saved_tensor_with_no_vc_check"  # of PyTorch: such tensors come last
STEP = 2.0**-20  # between copies of nodes, as a share of a place in the graph


def rewrite(
    forward: GraphModule, backward: GraphModule, plan: Sequence[Saved], num_outputs: int
) -> None:
    """Put encoders behind what is saved, and decoders before the first use.

    Codes take the place of what they stand for among the outputs and the placeholders, so tensors
    stay before symbolic sizes, and those that PyTorch does not check for writes behind the others.
    """
    finder = _Forward(forward.graph)
    coded = [one for one in plan if one.format is not None]
    sources = [one.forward if one.is_in_place else finder.compute(one.point) for one in coded]
    places: dict[Node, tuple[Node, ...]] = {}
    for one, source in zip(coded, sources, strict=True):
        places[one.forward] = _encode(forward.graph, backward.graph, one, source)
    for one in plan:
        if one.source is not None:
            places[one.forward] = _cast_again(backward.graph, one)
        elif one.forward not in places and not one.backward.users:
            places[one.forward] = ()
        if one.forward in places:
            backward.graph.erase_node(one.backward)
    put_out(forward.graph, places, num_outputs)
    for module in (forward, backward):
        module.graph.lint()
        module.recompile()


def _encode(forward: Graph, backward: Graph, one: Saved, source: Node) -> tuple[Node, ...]:
    """Encode one value in the forward graph and decode it in the backward graph; its codes."""
    value, chosen = one.point.meta["val"], one.format
    assert chosen is not None

    def encode(x: Tensor) -> Parts:
        return chosen.encode(x.permute(one.order).contiguous())  # compilers keep codes as they lie

    def decode(*parts: Tensor) -> Tensor:
        back = [one.order.index(dim) for dim in range(value.dim())]
        decoded = cast(chosen.decode(*parts), value.dtype)
        if back == sorted(back):
            return decoded
        return decoded.permute(back).clone()  # else Inductor lays out what is behind the view

    parts = record(forward, source.next, encode, source)
    codes = []
    with backward.inserting_before(one.backward):
        for part in parts:
            part.meta[NO_CHECK] = one.forward.meta.get(NO_CHECK, False)
            code = backward.placeholder(part.name)
            code.meta.update(part.meta)
            codes.append(code)
    first = first_user(backward, one.point)
    one.point.replace_all_uses_with(record(backward, first, decode, *codes))
    _erase_unread(backward, one.point)
    return tuple(parts)


def first_user(graph: Graph, node: Node) -> Node:
    """The user that stands first in the graph."""
    return next(user for user in graph.nodes if user in node.users)


def _cast_again(backward: Graph, one: Saved) -> tuple[Node, ...]:
    """Cast a parameter in the backward graph too; the parameter, if it is not saved already."""
    source = one.source
    assert source is not None
    chain = [one.forward]
    while chain[-1] is not source:
        chain += chain[-1].all_input_nodes
    there = {node.name: node for node in backward.find_nodes(op="placeholder")}
    value = there.get(source.name)
    if value is None:
        with backward.inserting_before(one.backward):
            value = backward.placeholder(source.name)
        value.meta.update(source.meta)
    with backward.inserting_before(first_user(backward, one.backward)):
        for node in reversed(chain[:-1]):
            read = value
            value = backward.node_copy(node, lambda _, read=read: read)
    one.backward.replace_all_uses_with(value)
    return () if source.name in there else (source,)


def _erase_unread(graph: Graph, node: Node) -> None:
    """Erase a node that nobody reads, and what only it read; placeholders stay."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node.op != "placeholder" and not node.users:
            waiting += node.all_input_nodes
            graph.erase_node(node)


class _Forward:
    """Values of the backward graph, computed in the forward graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes = {node.name: node for node in graph.nodes}
        self._order: dict[Node, float] = {node: i for i, node in enumerate(graph.nodes)}

    def compute(self, node: Node) -> Node:
        """The node that computes the same; a copy behind what it reads, where there is none."""
        reads = {read: self.compute(read) for read in node.all_input_nodes}
        twin = self._nodes.get(node.name)
        if twin is not None and (
            node.op == "placeholder"
            or (twin.target == node.target and twin.all_input_nodes == list(reads.values()))
        ):
            return twin
        last = max(reads.values() or self._graph.find_nodes(op="placeholder"), key=self._place)
        with self._graph.inserting_after(last):
            copy = self._graph.node_copy(node, reads.__getitem__)
        self._order[copy] = self._order[last] + STEP
        self._nodes[node.name] = copy
        return copy

    def _place(self, node: Node) -> float:
        return self._order[node]


def put_out(graph: Graph, places: dict[Node, tuple[Node, ...]], num_outputs: int) -> None:
    """Give out codes in the places of what they stand for."""
    output = graph.output_node()
    before = list(output.args[0])
    after = before[:num_outputs]
    for node in before[num_outputs:]:
        after += places.get(node, (node,))
    output.args = (tuple(after),)
    if "desc" in output.meta:
        output.meta["desc"] = list(output.meta["desc"])[:num_outputs] + [
            (
                SavedForBackwardsNoVcCheckAOTOutput
                if node.meta.get(NO_CHECK)
                else SavedForBackwardsAOTOutput
            )(i)
            for i, node in enumerate(after[num_outputs:])
        ]
