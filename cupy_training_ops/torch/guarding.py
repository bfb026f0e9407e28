# SPDX-License-Identifier: MIT
"""Guards of a context: what is measured of codes, for whom, and what follows from it.

A norm that centres features makes the gradient of the product before it blind to their means, and
those of products before that, as far as all samples have the same slopes. That it takes a product's
result is seen when it saves it: products are known by the sequence numbers of their nodes.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from torch import Tensor

from ..codecs.kept.guards import LINEAR, NORMALISED, PRODUCT, RANGE, TILES, Guard
from ..codecs.kept.window import Step
from .consumers import LEAF_NODE, SAME_NUMBERS
from .kinds import MANY, Kind
from .late import NUMBERS, Late, late
from .saved import Kept, Passed
from .window import Operand, Window

SUMS = frozenset(f"{name}Backward{i}" for i in (0, 1) for name in ("Add", "Sub"))
SLOPES = frozenset(f"{name}Backward0" for name in ("Relu", "LeakyRelu", "Gelu", "Silu"))
LOOKED_BEHIND = SAME_NUMBERS | SUMS | SLOPES
STEPS = 64  # nodes that a norm looks back
# The sequence number of the node that comes next: one less is that of the node that saves.
next_node = torch._C._autograd._get_sequence_nr


class Thread(threading.local):
    """Products of a thread, and how many tensors of each kind it encoded in this step."""

    def __init__(self) -> None:
        self.products: dict[int, weakref.ref[Kept]] = {}  # by the sequence number of their node
        self.counts: dict[Kind, int] = {}
        self.captured: list[tuple[Guard, Tensor]] = []
        self.product = -1  # the one whose operands come, by its node
        self.operands: list[Operand] = []


class Guarding:
    """The guards of one context, in all threads."""

    def __init__(self, last: Step | None = None) -> None:
        self.window = Window(last=last)
        self._thread = Thread()
        self._later: dict[torch.device, Tensor] = {}  # failures of replayed graphs

    def begin(self) -> None:
        """A step of a thread begins."""
        self._thread.counts.clear()

    def end(self) -> None:
        """It ends: what was captured is counted at each replay."""
        thread = self._thread
        thread.products.clear()
        self._operands(-1)
        self.window.end_step()
        captured, thread.captured = thread.captured, []
        for guard, numbers in captured:
            self._later[numbers.device] += (~guard.does(numbers)).long()

    def failed_later(self) -> int:
        """Tensors of replayed graphs whose codes were not good enough; waits for the device."""
        return sum(int(found) for found in self._later.values())

    # ---- encoding --------------------------------------------------------------------------------

    def refuses(self, kept: Kept, kind: Kind, is_captured: bool) -> bool:
        """Whether a tensor of a graph that is captured was not good enough in the steps before."""
        counts = self._thread.counts
        n = counts.get(kind, 0)
        counts[kind], kept.place = n + 1, kind.number + n
        return is_captured and not self.window.decided.get(kept.place, False)

    def add(self, kept: Kept, x: Tensor, kind: Kind, numbers: Any, original: Passed | None) -> None:
        """New codes with what was measured; the original waits, None where a graph is captured."""
        if kind.measure == RANGE:
            numbers = range_of(kept.code, x.detach(), kind)
        if original is None:
            self._thread.captured.append((kind.guard, numbers))
            return
        index = kind.index
        if index >= 0 and kind.look.device not in self._later:
            device = kind.look.device
            self._later[device] = torch.zeros((), dtype=torch.int64, device=device)
        kept.original = original
        node = next_node() - 1 if kind.use.need == PRODUCT else -1
        operands = None if node == self._thread.product == -1 else self._operands(node)
        waiting = Operand(kept, kind, *late(numbers, index), operands)
        self.window.add(waiting, kept, kind.coding.code_nbytes)

    def _operands(self, node: int) -> list[Operand] | None:
        """Those of the product whose node is being made, which end with it; -1 is none."""
        thread = self._thread
        if thread.product != node:
            if thread.operands:
                self.window.closed(thread.operands)
            thread.product, thread.operands = node, []
        return thread.operands if node >= 0 else None

    def answers(self, kept: Kept, kind: Kind) -> bool:
        """Whether what was measured, or needs no measure, does for one more consumer."""
        if kept.code is None or kind.measure != TILES:
            return True
        had, guard = kept.kind.guard, kind.guard
        if guard.need in (NORMALISED, PRODUCT):
            return had.need == guard.need and had.grouping == guard.grouping
        return guard.need != LINEAR or had.grouping == guard.grouping

    # ---- products whose results are centred ------------------------------------------------------

    def link(self, kept: Kept) -> None:
        """Remember a product by the node that is being made."""
        if not kept.waiting:
            return
        products = self._thread.products
        if len(products) >= MANY:
            products.clear()
        products[next_node() - 1] = weakref.ref(kept)

    def centre(self, x: Tensor) -> None:
        """A norm saves x: products that it is the sum of are centred, and those before them."""
        products = self._thread.products
        nodes, steps = [x.grad_fn], 0
        while products and nodes and steps < STEPS:
            node, steps = nodes.pop(), steps + 1
            if node is None:
                continue
            found = products.get(node._sequence_nr())
            kept = None if found is None else found()
            if kept is not None:
                self.window.centre(kept)
            if kept is not None or type(node).__name__ in LOOKED_BEHIND:
                before = [each for each, _ in node.next_functions]
                nodes += [each for each in before if type(each) is not LEAF_NODE]


def range_of(code: Tensor, x: Tensor, kind: Kind) -> Tensor:
    """The largest magnitude of float16 codes; of operands also how far they are from their means.

    A product of two activations may be followed by what does not see means, as a softmax is.
    """
    largest = torch.linalg.vector_norm(code.view(torch.float16), torch.inf, dtype=torch.float32)
    if kind.use.need != PRODUCT:
        return largest.reshape(1)
    others = [d for d in range(x.dim()) if d not in kind.use.groups]
    variance, mean = torch.var_mean(x, others, correction=0)
    return torch.stack([largest, variance.float().sum(), mean.float().square().sum()])


def room(kind: Kind, captured: bool) -> Tensor | Late:
    """Memory for what the encoder measures: the host's, where the host is to read it."""
    if kind.index >= 0 and not captured:
        return Late(kind.index)
    return torch.empty(NUMBERS, dtype=torch.float32, device=kind.look.device)


def is_captured(kind: Kind) -> bool:
    """Whether a CUDA graph takes what is queued."""
    return kind.index >= 0 and torch.cuda.is_current_stream_capturing()
