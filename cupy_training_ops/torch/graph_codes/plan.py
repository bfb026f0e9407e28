# SPDX-License-Identifier: MIT
"""Decide for each saved value: it stays, or waits as codes, and in which place."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.fx import Graph, Node

from .consumers import (
    FORWARD_PRODUCTS,
    SUMS,
    VIEWS,
    Backward,
    Need,
    Uses,
    is_blind_to_means,
    is_tensor,
    is_uneven,
    name_of,
    packet,
)
from .formats import BITS, FLOATS, TILE, Format
from .policies import GraphPolicy

CAST = "cast of a parameter"
ANYWAY = {"parameter", "input"}
SHARED = "shared"  # its memory stays for another
SMALL = "small"
UNKNOWN_SIZE = 4096  # what PyTorch's partitioner takes for a size that nobody knows


@dataclass(frozen=True)
class Saved:
    """A tensor that the forward pass saves, and what becomes of it."""

    forward: Node
    backward: Node  # its placeholder
    nbytes: int
    point: Node  # of the backward graph: the value that is encoded in its place
    format: Format | None
    reason: str  # why it stays, or who needs it most exactly
    order: tuple[int, ...] = ()  # of the dimensions in memory
    is_dropped: bool = False  # it is computed from another one's codes
    absorbs: bool = False  # others are computed from its codes
    source: Node | None = None  # the parameter of which it is a cast that is made again

    def as_it_is(self, reason: str) -> Saved:
        """The tensor saved without codes."""
        return Saved(self.forward, self.backward, self.nbytes, self.backward, None, reason)

    @property
    def is_in_place(self) -> bool:
        """Return True if the value itself is encoded, and not one that is computed from it."""
        return self.point is self.backward

    @property
    def is_there_anyway(self) -> bool:
        """Return True if the memory is the caller's."""
        return self.reason in ANYWAY

    @property
    def bytes_waiting(self) -> int:
        """Bytes that wait for the backward pass."""
        if self.is_dropped:
            return 0
        if self.format is None:
            return self.nbytes
        return self.format.nbytes(numel_of(self.point.meta["val"]))


class Planner:
    """Decides for the saved tensors of one graph."""

    def __init__(self, policy: GraphPolicy, least: int, static: Iterable[int]) -> None:
        self._policy, self._least, self._static = policy, least, frozenset(static)
        self._nodes: dict[str, Node] = {}  # of the forward graph, by name

    def plan(self, forward: Graph, backward: Graph, num_outputs: int) -> list[Saved]:
        """A decision for each saved tensor, in the order of the forward graph's outputs."""
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

    def _made_of(self, node: Node, point: Node) -> Iterator[Node]:
        """Yield saved values, as nodes of the forward graph, that `point` is computed from.

        point: a node of the backward graph, as the sum of `node` and of other saved values; `node`
        comes first.
        """
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
        """Parameters, and what is computed from nothing else, as their casts."""
        placeholders = forward.find_nodes(op="placeholder")
        parameters = {node for i, node in enumerate(placeholders) if i in self._static}
        for node in forward.nodes:
            reads = node.all_input_nodes
            if node.op == "call_function" and reads and all(read in parameters for read in reads):
                parameters.add(node)
        return parameters

    def _choices(self, node: Node, seen: Backward, parameters: set[Node]) -> list[Saved]:
        """List choices for a tensor: one for each value that could be encoded."""
        placeholder = seen.placeholders[node.name]
        value = node.meta["val"]
        nbytes = nbytes_of(value)
        stays = _why_never(node, nbytes, self._least, parameters)
        if stays == CAST and nbytes >= self._least:
            source = _producer(node, node)
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
        # point: the value of the backward graph that is encoded: the tensor's placeholder, or what
        # is computed from it and read in its place. uses: of that value.
        value, producer = point.meta["val"], _producer(node, point)
        if value.dtype is torch.bool:
            chosen: Format | None = BITS
            reason = "mask"
        elif value.dtype not in FLOATS:
            chosen, reason = None, "dtype"
        elif uses.need < Need.EXACT and is_uneven(producer):
            chosen, reason = None, f"made by {name_of(producer)}"
        elif any(_is_near_batch_norm(_producer(x, x)) for x in self._made_of(node, point)):
            chosen, reason = None, "a sum before a batch norm"
        else:
            chosen, reason = self._policy.format_for(uses), uses.reason
        order = memory_order(value) if chosen else ()
        if chosen and not _is_divisible(value, order, chosen.multiple):
            chosen, reason = None, "shape"
        return Saved(node, placeholder, nbytes, point, chosen, reason, order)


def numel_of(value: Tensor) -> int:
    """Count the numbers of a tensor; of symbolic sizes, for the example that is compiled."""
    return math.prod(map(_number, value.shape))


def nbytes_of(value: Tensor) -> int:
    """Bytes of a tensor."""
    return numel_of(value) * int(value.dtype.itemsize)


def _number(size: int | torch.SymInt) -> int:
    """A symbolic size counts as in the example that is compiled."""
    if isinstance(size, int):
        return size
    return int(size.node.hint) if size.node.has_hint() else UNKNOWN_SIZE


def memory_order(value: Tensor) -> tuple[int, ...]:
    """Dimensions from the one with the largest stride to the contiguous one.

    Channels come last in what convolutions take: compilers for GPUs lay it out like that, whatever
    the strides in the graph.
    """
    if _is_image(value):
        return (0, 2, 3, 1)
    strides = [(_number(stride), -dim) for dim, stride in enumerate(value.stride())]
    return tuple(-dim for _, dim in sorted(strides, reverse=True))


def _is_image(value: Tensor) -> bool:
    """Return True for contiguous (N, C, H, W) whose channels are whole tiles."""
    if value.dim() != 4 or not isinstance(value.shape[1], int) or value.shape[1] % TILE:
        return False
    return bool(value.is_contiguous())


def _why_never(node: Node, nbytes: int, least: int, parameters: set[Node]) -> str:
    """The reason why a tensor stays whoever reads it."""
    source = _producer(node, node)
    if node in parameters or source in parameters:
        is_cast = source.op == "placeholder" and _storage(source) != _storage(node)
        return CAST if is_cast else "parameter"
    if source.op == "placeholder":
        return "input"
    return SMALL if nbytes < least else ""


def _producer(node: Node, point: Node) -> Node:
    """Find the node that computed a value, behind views and casts.

    The value is `point` of the backward graph, or `node` of the forward graph where `point` is only
    the placeholder through which the backward graph reads it.
    """
    producer = point if point.op != "placeholder" else node
    while producer.op == "call_function" and packet(producer.target) in VIEWS:
        if len(producer.all_input_nodes) != 1:
            break
        (producer,) = producer.all_input_nodes
    return producer


def _is_near_batch_norm(producer: Node) -> bool:
    """Return True for s = a + b in s -> product -> batch norm, and for results of that product.

    The norm takes the means of features away, and codes that are good beside large means may be bad
    beside what is left. Results are also seen through views and further sums.
    """
    if packet(producer.target) in SUMS and is_blind_to_means(producer):
        return True
    waiting, seen = [producer], {producer}
    sources: list[Node] = []
    while waiting:
        node = waiting.pop()
        if packet(node.target) in FORWARD_PRODUCTS:
            sources += (_producer(read, read) for read in node.all_input_nodes)
        elif packet(node.target) in SUMS | VIEWS:
            waiting += (read for read in node.all_input_nodes if read not in seen)
            seen.update(waiting)
    return any(packet(x.target) in SUMS and is_blind_to_means(x) for x in sources)


def _is_divisible(value: Tensor, order: tuple[int, ...], multiple: int) -> bool:
    """Return True if rows along the innermost dimension in memory are whole tiles."""
    if not order:
        return False
    last = value.shape[order[-1]]
    return isinstance(last, int) and last % multiple == 0 and last > 0


def _choose(choices: list[list[Saved]]) -> list[Saved]:
    """Choose for each tensor what has the fewest bytes, together where that is less.

    Where a and b are read only in a + b, it is encoded once: for a, which absorbs b; b is dropped.
    """
    saved = [min(options, key=lambda option: option.bytes_waiting) for options in choices]
    by_point: dict[Node, dict[int, Saved]] = {}
    for i, options in enumerate(choices):
        for option in options:
            if option.format is not None and not option.is_in_place:
                by_point.setdefault(option.point, {})[i] = option
    for there in by_point.values():
        first, *others = there
        if any(saved[i].is_dropped for i in there):
            continue
        apart = sum(saved[i].bytes_waiting for i in there)
        if there[first].bytes_waiting < apart or any(
            saved[i].point is there[i].point for i in there
        ):
            saved[first] = replace(there[first], absorbs=bool(others))
            for i in others:
                saved[i] = replace(there[i], format=None, is_dropped=True, reason="behind a sum")
    return saved


def _storage(node: Node) -> int:
    """Number that values of one memory share."""
    return int(node.meta["val"].untyped_storage()._cdata)


def _without_shared(saved: list[Saved], alive: set[int]) -> list[Saved]:
    """Leave without codes what shares memory that stays anyway: codes of a view save nothing."""
    while True:
        stays = [one for one in saved if one.format is None and not one.is_dropped]
        alive = alive | {_storage(one.forward) for one in stays}
        shared = [one for one in saved if one.format and _storage(one.forward) in alive]
        if not shared:
            return saved
        saved = [one.as_it_is(SHARED) if one in shared else one for one in saved]
