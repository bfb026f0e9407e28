# SPDX-License-Identifier: MIT
"""Plan for each saved value of a compiled graph: as it is, as codes, or computed again.

Here `node` is a saved value in the forward graph, `nbytes` are its bytes, `placeholder` is the same
value in the backward graph, and `point` the value of the backward graph that would be encoded: the
placeholder, or computed from it. parameters: nodes of the forward graph that are parameters, or
computed only from them. least: bytes below which a value is not encoded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointPolicy

from .consumers import (
    FORWARD_PRODUCTS,
    SUMS,
    VIEWS,
    Backward,
    Need,
    Uses,
    aten,
    is_blind_to_means,
    is_tensor,
    name_of,
    needs_exact_results,
    packet,
    tokens_of,
)
from .formats import BITS, FLOATS, TILE, Format
from .policies import GraphPolicy

# Reasons why a value has no codes.
CAST = "cast of a parameter"
# A weight, for all that a graph says; an activation, if the model's input is a torch.nn.Parameter.
COMPUTED = "computed from parameters"
ANYWAY = {"parameter", "input"}  # its memory is there in any case
SHARED = "shared"  # its memory stays alive for another value
SMALL = "small"  # fewer bytes than `least`
UNKNOWN_SIZE = 4096  # what PyTorch's partitioner assumes for an unknown size


@dataclass(frozen=True)
class Saved:
    """Plan of one tensor that the forward pass saves: unchanged, as codes, or dropped."""

    forward: Node  # in the forward graph
    backward: Node  # its placeholder in the backward graph
    nbytes: int
    point: Node  # value of the backward graph to encode: `backward`, or computed from it (a + b)
    format: Format | None  # of codes; None if not encoded
    reason: str  # why it has no codes, or the operator that needs it most exactly
    order: tuple[int, ...] = ()  # dimensions by stride, the largest first
    tokens: int | None = None  # dimension over whose mean the codes are centred
    is_dropped: bool = False  # not saved: part of another plan's sum, or `source` cast again
    absorbs: bool = False  # codes of a + b: the plan of a; that of b is dropped
    source: Node | None = None  # parameter that the backward pass casts again

    def without_codes(self, reason: str) -> Saved:
        """Return a plan without codes."""
        return Saved(self.forward, self.backward, self.nbytes, self.backward, None, reason)

    @property
    def is_in_place(self) -> bool:
        """Return True if the value itself is encoded."""
        return self.point is self.backward

    @property
    def is_free(self) -> bool:
        """Return True if saving it costs no memory: a parameter or an input."""
        return self.reason in ANYWAY

    @property
    def saved_nbytes(self) -> int:
        """Return the bytes saved for the backward pass."""
        if self.is_dropped:
            return 0
        if self.format is None:
            return self.nbytes
        value = self.point.meta["val"]
        nbytes = self.format.nbytes(numel_of(value))
        if self.tokens is not None:
            nbytes += 4 * numel_of(value) // _number(value.shape[self.tokens])
        return nbytes


class Planner:
    """Plans for the saved tensors of one graph.

    policy: the format of codes for each use of a value. static: indices of parameters among the
    forward graph's placeholders.
    """

    def __init__(self, policy: GraphPolicy, least: int, static: Iterable[int]) -> None:
        self._policy, self._least, self._static = policy, least, frozenset(static)
        self._nodes: dict[str, Node] = {}  # of the forward graph, by name

    def plan(self, forward: Graph, backward: Graph, num_outputs: int) -> list[Saved]:
        """Return a plan for each saved tensor, in the order of the forward graph's outputs.

        num_outputs: outputs before them, which are results of the model.
        """
        self._nodes = {node.name: node for node in forward.nodes}
        outputs = list(forward.output_node().args[0])
        parameters = self.of_parameters(forward)
        seen = Backward(backward, {node.name for node in parameters})
        choices = [
            self._choices(node, seen, parameters)
            for node in outputs[num_outputs:]
            if is_tensor(node) and node.name in seen.placeholders
        ]
        saved = _choose(choices)
        alive = {_storage(node) for node in outputs[:num_outputs] if is_tensor(node)}
        alive |= {_storage(n) for n in forward.nodes if n.op == "placeholder" and is_tensor(n)}
        return _without_shared(saved, alive)

    def _saved_operands(self, node: Node, point: Node) -> Iterator[Node]:
        """Yield `node` and all saved values that `point` of the backward graph is computed from."""
        yield node
        waiting, seen = [point], {point}
        while waiting:
            for read in waiting.pop().all_input_nodes:
                if read.op == "placeholder" and read.name in self._nodes:
                    yield self._nodes[read.name]
                if read not in seen:
                    seen.add(read)
                    waiting.append(read)

    def of_parameters(self, forward: Graph) -> set[Node]:
        """Return parameters, and values computed only from them, as casts.

        Without those that the forward pass writes to: the backward pass would read what is new.
        """
        placeholders = forward.find_nodes(op="placeholder")
        parameters = {node for i, node in enumerate(placeholders) if i in self._static}
        parameters -= _written(forward)
        for node in forward.nodes:
            reads = node.all_input_nodes
            if node.op == "call_function" and reads and all(read in parameters for read in reads):
                parameters.add(node)
        return parameters

    def _choices(self, node: Node, seen: Backward, parameters: set[Node]) -> list[Saved]:
        """Return the possible plans of a tensor, one for each `point` that could be encoded.

        seen: the backward graph.
        """
        placeholder = seen.placeholders[node.name]
        value = node.meta["val"]
        nbytes = nbytes_of(value)
        stays = _why_never(node, nbytes, self._least, parameters)
        if stays == CAST and nbytes >= self._least:
            source = producer_of(node)
            return [
                Saved(
                    node,
                    placeholder,
                    nbytes,
                    placeholder,
                    None,
                    stays,
                    is_dropped=True,
                    source=source,
                )
            ]
        if stays:
            return [Saved(node, placeholder, nbytes, placeholder, None, stays)]
        return [
            self._choice(node, placeholder, nbytes, point, seen.uses(point))
            for point in seen.points(placeholder)
        ]

    def _choice(self, node: Node, placeholder: Node, nbytes: int, point: Node, uses: Uses) -> Saved:
        """Return the plan of a tensor with codes of `point`, whose format follows from its uses in
        the backward graph, or without codes where none fits."""
        value, producer = point.meta["val"], _producer(node, point)
        if value.dtype is torch.bool:
            chosen: Format | None = BITS
            reason = "mask"
        elif value.dtype not in FLOATS:
            chosen, reason = None, "dtype"
        elif uses.need < Need.EXACT and needs_exact_results(producer):
            chosen, reason = None, f"made by {name_of(producer)}"
        elif any(_is_near_batch_norm(producer_of(x)) for x in self._saved_operands(node, point)):
            chosen, reason = None, "a sum before a batch norm"
        else:
            chosen, reason = self._policy.format_for(uses, value.dtype), uses.reason
        tokens = tokens_of(point) if chosen and chosen.is_centred else None
        order = memory_order(value, _is_image(value) and tokens is None) if chosen else ()
        if chosen and (
            not _is_divisible(value, order, chosen.multiple)
            or (chosen.is_centred and (tokens is None or tokens == order[-1]))
        ):
            chosen, reason, tokens = None, "shape", None
        plan = Saved(node, placeholder, nbytes, point, chosen, reason, order, tokens)
        if tokens is not None and plan.saved_nbytes >= nbytes:  # of few tokens
            return replace(plan, format=None, reason="shape", tokens=None)
        return plan


def save_what_reads_written_inputs(joint: Graph) -> None:
    """Forbid PyTorch's partitioners to compute again in the backward pass what is computed from
    inputs that the forward pass writes to: it would read the new numbers."""
    waiting = [*_written(joint)]  # inputs, and views of them
    while waiting:
        node = waiting.pop()
        for user in node.users:
            if is_tensor(user) and _storage(user) == _storage(node):
                waiting.append(user)
            elif user.op == "call_function":
                user.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _written(graph: Graph) -> set[Node]:
    """Return the placeholders that a forward or joint graph, or PyTorch behind it, writes to."""
    results = graph.output_node().meta.get("desc", ())
    inputs = {x.mutated_input for x in results if isinstance(x, InputMutationAOTOutput)}
    placeholders = graph.find_nodes(op="placeholder")
    written = {node for node in placeholders if node.meta.get("desc") in inputs}
    copies = (node for node in graph.nodes if packet(node.target) is aten.copy_)
    return written | {node.all_input_nodes[0] for node in copies}


def numel_of(value: Tensor) -> int:
    """Count the elements of a tensor; symbolic sizes are those of the compiled example."""
    return math.prod(map(_number, value.shape))


def nbytes_of(value: Tensor) -> int:
    """Return the bytes of a tensor; symbolic sizes are those of the compiled example."""
    return numel_of(value) * int(value.dtype.itemsize)


def _number(size: int | torch.SymInt) -> int:
    """Return a size; a symbolic one is that of the compiled example."""
    if isinstance(size, int):
        return size
    return int(size.node.hint) if size.node.has_hint() else UNKNOWN_SIZE


def memory_order(value: Tensor, is_image: bool) -> tuple[int, ...]:
    """Return the dimensions from the largest stride to the contiguous one.

    Of images, (N, C, H, W), channels are last: compilers for GPUs choose that layout whatever the
    strides here.
    """
    if is_image:
        return (0, 2, 3, 1)
    # Of equal strides the first dimension comes first: -dim is sorted in reverse too.
    strides = [(_number(stride), -dim) for dim, stride in enumerate(value.stride())]
    return tuple(-dim for _, dim in sorted(strides, reverse=True))


def _is_image(value: Tensor) -> bool:
    """Return True for contiguous (N, C, H, W) whose channels are whole tiles."""
    if value.dim() != 4 or not isinstance(value.shape[1], int) or value.shape[1] % TILE:
        return False
    return bool(value.is_contiguous())


def _why_never(node: Node, nbytes: int, least: int, parameters: set[Node]) -> str:
    """Return why a tensor has no codes whatever reads it, or ""."""
    source = producer_of(node)
    if source.op == "placeholder":
        if source not in parameters:
            return "input"
        return "parameter" if _storage(source) == _storage(node) else CAST
    if nbytes >= least and (node in parameters or source in parameters):
        return COMPUTED
    return SMALL if nbytes < least else ""


def _producer(node: Node, point: Node) -> Node:
    """Return the node that computed `point`, before views and casts.

    If `point` is the placeholder of `node` in the backward graph, search from `node`.
    """
    producer = point if point.op != "placeholder" else node
    while producer.op == "call_function" and packet(producer.target) in VIEWS:
        if len(producer.all_input_nodes) != 1:
            break
        (producer,) = producer.all_input_nodes
    return producer


def producer_of(node: Node) -> Node:
    """Return the node of the forward graph that computed a value, before views and casts."""
    return _producer(node, node)


def _is_near_batch_norm(producer: Node) -> bool:
    """Return True if `producer` computes the sum s of s -> product -> batch norm, or the result of
    that product.

    The norm subtracts feature means: errors that are small beside these may be large beside what is
    left. Looks through views and further sums.
    """
    if packet(producer.target) in SUMS and is_blind_to_means(producer):
        return True
    waiting, seen = [producer], {producer}
    sources: list[Node] = []
    while waiting:
        node = waiting.pop()
        if packet(node.target) in FORWARD_PRODUCTS:
            sources += (producer_of(read) for read in node.all_input_nodes)
        elif packet(node.target) in SUMS | VIEWS:
            waiting += (read for read in node.all_input_nodes if read not in seen)
            seen.update(waiting)
    return any(packet(x.target) in SUMS and is_blind_to_means(x) for x in sources)


def _is_divisible(value: Tensor, order: tuple[int, ...], multiple: int) -> bool:
    """Return True if the innermost dimension in memory is a multiple of `multiple`."""
    if not order:
        return False
    last = value.shape[order[-1]]
    return isinstance(last, int) and last % multiple == 0 and last > 0


def _choose(choices: list[list[Saved]]) -> list[Saved]:
    """Choose for each tensor the plan with the fewest bytes; choices: its possible plans.

    If a and b are read only in a + b, the sum is encoded: a absorbs b, which is dropped.
    """
    saved = [min(options, key=lambda option: option.saved_nbytes) for options in choices]
    by_point: dict[Node, dict[int, Saved]] = {}  # plans that encode this value, by index in choices
    for i, options in enumerate(choices):
        for option in options:
            if option.format is not None and not option.is_in_place:
                by_point.setdefault(option.point, {})[i] = option
    for members in by_point.values():
        first, *others = members
        if any(saved[i].is_dropped for i in members):
            continue
        separate = sum(saved[i].saved_nbytes for i in members)
        # Fewer bytes than those plans, or one of them encodes this value already.
        if members[first].saved_nbytes < separate or any(
            saved[i].point is members[i].point for i in members
        ):
            saved[first] = replace(members[first], absorbs=bool(others))
            for i in others:
                saved[i] = replace(members[i], format=None, is_dropped=True, reason="behind a sum")
    return saved


def _storage(node: Node) -> int:
    """Return an identifier of a value's storage."""
    return int(node.meta["val"].untyped_storage()._cdata)


def _without_shared(saved: list[Saved], alive: set[int]) -> list[Saved]:
    """Drop codes of values whose memory stays alive for others: they would save nothing.

    alive: identifiers of storages that stay alive in any case. Values without codes add theirs,
    so it repeats until nothing changes.
    """
    while True:
        stays = [one for one in saved if one.format is None and not one.is_dropped]
        alive = alive | {_storage(one.forward) for one in stays}
        shared = [one for one in saved if one.format and _storage(one.forward) in alive]
        if not shared:
            return saved
        saved = [one.without_codes(SHARED) if one in shared else one for one in saved]
