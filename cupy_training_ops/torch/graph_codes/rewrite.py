# SPDX-License-Identifier: MIT
"""Rewrite both graphs of a compiled model: saved values become codes, or are computed again.

A value that is a cheap function of encoded ones, as GELU's result of its operand, is computed again
from these: that moves as many bytes as decoding its own codes, and needs no encoder. Rows of an
embedding are looked up again, which is exact.

Here `one` is the plan of one saved value: one.forward is the value's node in the forward graph,
one.backward its placeholder in the backward graph, one.point the value that is encoded, which is
one.backward or computed from it, and one.source the parameter of which it is a cast, or None. A
`chain` is a list of nodes, operands first. num_outputs: outputs of the forward graph before the
saved values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch._aot_autograd.descriptors import (
    SavedForBackwardsAOTOutput,
    SavedForBackwardsNoVcCheckAOTOutput,
)
from torch._inductor.decomposition import select_decomp_table
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from .consumers import (
    FORWARD_PRODUCTS,
    MULTIPLIES,
    SMOOTH,
    SUMS,
    VIEWS,
    is_tensor,
    origin,
    packet,
    packets,
    prims,
)
from .formats import INT4_SIGNED, INT8_SIGNED, Parts, cast, centre_of
from .plan import ANYWAY, COMPUTED, SHARED, SMALL, Saved, numel_of

# PyTorch raises an error if a saved tensor was written since, by its version: a version check.
NO_CHECK = "saved_tensor_with_no_vc_check"  # PyTorch's key in node.meta: such tensors come last
STEP = 2.0**-20  # between the positions of nodes that are inserted after the same one
SIGNED = {INT8_SIGNED, INT4_SIGNED}  # recomputed values might have other signs
MOST_SOURCES = 2  # encoded values of its size, from which one is computed again
LOOKUPS = packets("embedding")
COPY_OF = "copy_of"  # key of node.meta: name in the forward graph
ALIASES = packets("alias", "detach")
COPIES = VIEWS - packets("as_strided", "cat", "stack")
EXACT = LOOKUPS | VIEWS | MULTIPLIES | SUMS | {prims.iota}  # cheap, without errors of codes
STAYS = ANYWAY | {COMPUTED, SHARED, SMALL}  # reasons for which a value is saved as it is


def rewrite(
    forward: GraphModule, backward: GraphModule, plan: Sequence[Saved], num_outputs: int
) -> None:
    """Put encoders after saved values into the forward graph, and decoders before their first use
    into the backward graph, as `plan`, of all saved values, says.

    Codes replace values in their places among outputs and placeholders, as PyTorch orders these:
    tensors, tensors without a version check, symbolic sizes.
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
            places[one.forward] = ()  # the codes of a sum, another plan's, took its place
        if one.forward in places:
            backward.graph.erase_node(one.backward)
    put_out(forward.graph, places, num_outputs)
    for module in (forward, backward):
        module.graph.lint()
        module.recompile()


def _encode(forward: Graph, backward: Graph, one: Saved, source: Node) -> tuple[Node, ...]:
    """Encode a value in the forward graph and decode it in the backward graph; return the nodes of
    its codes. source: the node of `one.point` in the forward graph.
    """
    value, chosen = one.point.meta["val"], one.format
    assert chosen is not None

    # Pixels are one dimension of codes: compilers lay out every array of four dimensions as images
    # with the channels last, and would take the width for channels where these are moved back.
    is_image = _is_image(value, one.order)

    def encode(x: Tensor) -> Parts:
        """Return codes, scales, and the centre if there is one; dimensions in memory order."""
        centre: Parts = ()
        if one.tokens is not None:
            centre = (centre_of(x, one.tokens).permute(one.order).contiguous(),)
        moved = x.flatten(2).transpose(1, 2) if is_image else x.permute(one.order)
        moved = moved.contiguous()  # fixes the codes' layout
        return *chosen.encode(moved - centre[0] if centre else moved), *centre

    def decode(*parts: Tensor) -> Tensor:
        """Return the value of what `encode` returned, its dimensions in their own order."""
        back = [one.order.index(dim) for dim in range(value.dim())]  # the inverse of one.order
        if one.tokens is not None:
            decoded = cast(chosen.decode(*parts[:-1]) + parts[-1], value.dtype)
        else:
            decoded = cast(chosen.decode(*parts), value.dtype)
        if is_image:
            return decoded.transpose(1, 2).unflatten(2, value.shape[2:]).clone()
        if back == sorted(back):
            return decoded
        return decoded.permute(back).clone()  # else Inductor changes the layout of later nodes

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


def _is_image(value: Tensor, order: tuple[int, ...]) -> bool:
    """Return True for (N, C, ...) of known extents whose channels are last in memory."""
    channels_last = (0, *range(2, value.dim()), 1)
    extents = value.shape[2:]
    return len(extents) > 1 and order == channels_last and all(type(n) is int for n in extents)


def first_user(graph: Graph, node: Node) -> Node:
    """Return the user that comes first in the graph."""
    return next(user for user in graph.nodes if user in node.users)


def _cast_again(backward: Graph, one: Saved) -> tuple[Node, ...]:
    """Recompute in the backward graph the casts from the parameter one.source to the saved value
    one.forward. Return what the forward pass saves instead of it: (parameter,), or () where that is
    saved already."""
    source = one.source
    assert source is not None
    chain = [one.forward]  # to the parameter: each cast or view has one operand
    while chain[-1] is not source:
        chain += chain[-1].all_input_nodes
    saved = {node.name: node for node in backward.find_nodes(op="placeholder")}
    value = saved.get(source.name)
    if value is None:
        with backward.inserting_before(one.backward):
            value = backward.placeholder(source.name)
        value.meta.update(source.meta)
    with backward.inserting_before(first_user(backward, one.backward)):
        for node in reversed(chain[:-1]):  # all but the parameter, the first cast first
            read = value
            value = backward.node_copy(node, lambda _, read=read: read)
    one.backward.replace_all_uses_with(value)
    return () if source.name in saved else (source,)


def _erase_unread(graph: Graph, node: Node) -> None:
    """Erase a node without users, and operands that have none then, except placeholders."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node.op != "placeholder" and not node.users:
            waiting += node.all_input_nodes
            graph.erase_node(node)


class _Forward:
    """Computes values of the backward graph in the forward graph, for encoders there.

    _nodes: the forward graph's, by name. _order: their positions, with fractions for nodes that
    were added.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes = {node.name: node for node in graph.nodes}
        self._order: dict[Node, float] = {node: i for i, node in enumerate(graph.nodes)}

    def compute(self, node: Node) -> Node:
        """Return the forward graph's node for the value of `node`, a node of the backward graph; if
        there is none, copy that, with its operands."""
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
    """Replace saved values among a forward graph's outputs.

    places: {node of the value: nodes that are saved in its place}, () for none. PyTorch's
    descriptions of the outputs (`desc`) are numbered again.
    """
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


def compute_again(
    forward: Graph,
    backward: Graph,
    plan: Sequence[Saved],
    parameters: set[Node],
    n_outputs: int,
    products: Collection[Saved] = (),
) -> tuple[Node, ...]:
    """Change both graphs so that the backward pass computes saved values again which follow from
    other saved values; return their nodes in the forward graph. They are no longer saved.

    parameters: nodes of the forward graph that are parameters or computed only from them.
    n_outputs: outputs of that graph before the saved values. products: plans of results of matrix
    products; if there are some, only these are computed again.
    """
    finder = _Images(backward, plan, parameters)
    places: dict[Node, tuple[Node, ...]] = {}
    for one in products or plan:
        if products:
            chain = finder.product(one)
        else:
            chain = finder.lookup(one) or finder.copy(one) or finder.chain(one)
        if chain:
            places[one.forward] = finder.write(one, chain)
    if places:
        put_out(forward, places, n_outputs)
    return tuple(places)


class _Images:
    """Finds values that can be computed again, and writes them into the backward graph.

    `lookup`, `copy`, `product` and `chain` each find one way, as a list of nodes of the forward
    graph, operands first; `write` copies such a list into the backward graph.
    """

    def __init__(self, backward: Graph, plan: Sequence[Saved], parameters: set[Node]) -> None:
        self._graph, self._parameters = backward, parameters
        # Placeholders of the backward graph by name, which is that of the saved forward node; and
        # forward nodes that are encoded.
        self._saved = {node.name: node for node in backward.find_nodes(op="placeholder")}
        self._coded = {one.forward for one in plan if one.format is not None}

    def lookup(self, one: Saved) -> list[Node]:
        """Return nodes that look a value up in rows of parameters, as an embedding does, or []."""
        chain: list[Node] = []
        if one.reason in STAYS or not self._follow_rows(one.forward, one.forward, chain):
            return []
        return chain if any(packet(node.target) in LOOKUPS for node in chain) else []

    def _follow_rows(self, node: Node, value: Node, chain: list[Node]) -> bool:
        """Return True if operators of EXACT compute `node` from parameters and tensors that are
        saved without codes and smaller than `value`; appends them to `chain`, operands first."""
        if node in chain:
            return True
        if node in self._parameters and node.op == "placeholder":
            return True
        if node is not value and node.name in self._saved:
            if not is_tensor(node) or node in self._coded:
                return False
            return numel_of(node.meta["val"]) < numel_of(value.meta["val"])
        if node.op != "call_function" or packet(node.target) not in EXACT:
            return False
        if not all(self._follow_rows(read, value, chain) for read in node.all_input_nodes):
            return False
        chain.append(node)
        return True

    def copy(self, one: Saved) -> list[Node]:
        """Return views and copies that make a value of another saved one, or [].

        Attention saves its result, and the product behind it a copy in another layout.
        """
        if one.reason in STAYS or one.source is not None:
            return []
        chain: list[Node] = []
        node = one.forward
        while packet(node.target) in COPIES and len(node.all_input_nodes) == 1:
            chain.insert(0, node)
            (node,) = node.all_input_nodes
            source = self._alias_of(node)
            if source is not None and source is not one.forward:
                is_exact = source not in self._coded
                return chain if is_exact or self._may_be_recomputed(one) else []
        return []

    def product(self, one: Saved) -> list[Node]:
        """Return the product that makes a value, and nodes that compute its operands, or []."""
        if one.reason in STAYS or one.source is not None:
            return []
        views: list[Node] = []
        node = one.forward
        while packet(node.target) in COPIES and len(node.all_input_nodes) == 1:
            views.insert(0, node)
            (node,) = node.all_input_nodes
        chain: list[Node] = []
        if packet(node.target) not in FORWARD_PRODUCTS or not all(
            self._follow(read, None, chain, set()) for read in node.all_input_nodes
        ):
            return []
        return [*chain, node, *views]

    def _alias_of(self, node: Node) -> Node | None:
        """Return the saved node that is `node`, or an alias of it."""
        if node.name in self._saved:
            return node
        for user in node.users:
            if packet(user.target) in ALIASES and (alias := self._alias_of(user)):
                return alias
        return None

    @staticmethod
    def _may_be_recomputed(one: Saved) -> bool:
        """Return True if a value may have the error of codes, and no use depends on its signs."""
        return one.format is not None and one.format not in SIGNED and one.is_in_place

    def chain(self, one: Saved) -> list[Node]:
        """Return pointwise nodes that compute a value from one or two encoded ones, or []."""
        if not self._may_be_recomputed(one):
            return []
        chain: list[Node] = []
        sources: set[Node] = set()
        if not self._follow(one.forward, one.forward, chain, sources):
            return []
        return chain if 0 < len(sources) <= MOST_SOURCES else []

    def _follow(
        self, node: Node, value: Node | None, chain: list[Node], sources: set[Node]
    ) -> bool:
        """Return True if pointwise operators, appended to `chain`, operands first, compute `node`
        from parameters, saved tensors smaller than `value`, and encoded ones that are not, which
        are added to `sources`. Without `value` all saved tensors will do."""
        if node in chain or node in sources:
            return True
        if node is not value and node.name in self._saved:
            if value is None or not is_tensor(node):
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
        """Return True if a node is elementwise and tolerates the error of decoded operands."""
        if node.op != "call_function" or not is_tensor(node):
            return False
        target = packet(node.target)
        if origin(node) in SMOOTH or target in VIEWS | MULTIPLIES:
            return True
        return target in SUMS and not node.kwargs and any(x in self._parameters for x in node.args)

    def write(self, one: Saved, chain: list[Node]) -> tuple[Node, ...]:
        """Compute a value in the backward graph by `chain`, in place of its placeholder; return
        operands, as parameters, that have to be saved for it."""
        added = []
        copies: dict[Node, Node] = {}
        for read in [read for node in chain for read in node.all_input_nodes]:
            if read in copies or read in chain:
                continue
            saved = self._alias_of(read)
            if saved is None:
                saved = read
                with self._graph.inserting_before(one.backward):
                    self._saved[read.name] = self._graph.placeholder(read.name)
                self._saved[read.name].meta.update(read.meta)
                added.append(read)
            copies[read] = self._saved[saved.name]
        with self._graph.inserting_before(first_user(self._graph, one.backward)):
            for node in chain:
                copies[node] = self._graph.node_copy(node, copies.__getitem__)
                copies[node].meta[COPY_OF] = node.name
        one.backward.replace_all_uses_with(copies[one.forward])
        self._graph.erase_node(one.backward)
        del self._saved[one.forward.name]
        self._coded.discard(one.forward)
        return tuple(added)


def record(graph: Graph, before: Node, function: Callable[..., Any], *inputs: Node) -> Any:
    """Insert a function's operators before a node; return its results as nodes.

    inputs: nodes, whose values the function takes.
    """
    recorder = _Recorder(graph, inputs)
    fake = inputs[0].meta["val"].fake_mode
    with graph.inserting_before(before), torch.no_grad(), fake, recorder:
        results = function(*(node.meta["val"] for node in inputs))
    return tree_map(recorder.node_of, results)


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Records each call of an operator as a node; the function runs on fake tensors."""

    def __init__(self, graph: Graph, inputs: tuple[Node, ...]) -> None:
        super().__init__()
        self._graph = graph
        self._nodes = {id(node.meta["val"]): node for node in inputs}  # by id of their tensor
        self._sizes: dict[str, Node] = {}  # by symbolic size
        self._alive: list[Tensor] = []  # so that no id is reused
        self._inputs = inputs
        self._decompositions = select_decomp_table()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        """Run an operator on fake tensors, and add its call and results to the graph."""
        # Inductor lowers only the decomposition of some operators, as of to.dtype: record that.
        if func.namespace == "aten":
            with self:
                decomposed = self._decompositions.get(func, func.decompose)
                result = decomposed(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, (Tensor, list, tuple)):
            return result  # of a query, as for the device
        node = self._graph.call_function(
            func, tree_map(self.node_of, args), tree_map(self.node_of, kwargs or {})
        )
        node.meta["val"] = result
        self._alive += tree_leaves(result)
        if isinstance(result, Tensor):
            self._nodes[id(result)] = node
        else:
            for i, one in enumerate(result):
                item = self._graph.call_function(operator.getitem, (node, i))
                item.meta["val"] = one
                self._nodes[id(one)] = item
        return result

    def node_of(self, value: object) -> object:
        """Return the node of a tensor or symbolic size; other values unchanged."""
        if isinstance(value, Tensor):
            return self._nodes[id(value)]
        if isinstance(value, torch.SymInt):
            return self._size(value)
        return value

    def _size(self, value: torch.SymInt) -> object:
        """Return a node for a symbolic size, read from a dimension of an input that has it."""
        key = str(value)
        if key not in self._sizes:
            places = (
                (node, dim)
                for node in self._inputs
                for dim, size in enumerate(node.meta["val"].shape)
                if str(size) == key
            )
            node, dim = next(places)
            size = self._graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
            size.meta["val"] = value
            self._sizes[key] = size
        return self._sizes[key]
