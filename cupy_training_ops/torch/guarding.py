# SPDX-License-Identifier: MIT
"""Guards of a context: what is measured of codes, for whom, and what follows from it.

A norm that centres features makes the gradient of the product before it blind to their means. That
it takes a product's result is seen when it saves it: products are known by the sequence numbers of
their nodes.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from .account import Account
from .consumers import LINEAR, NORMALISED, SAME_NUMBERS
from .guards import GROUP, LARGEST, LEAST, TILE
from .kept import Kept, Passed
from .kinds import MANY, Kind
from .roomy import on_host
from .window import Window

SUMS = frozenset(f"{name}Backward{i}" for i in (0, 1) for name in ("Add", "Sub"))
STEPS = 16  # nodes that a norm looks back
NO_NUMBERS: Any = None


class Thread(threading.local):
    """Products of a thread, and how many tensors of each kind it encoded in this step."""

    def __init__(self) -> None:
        self.products: dict[int, weakref.ref[Kept]] = {}  # by the sequence number of their node
        self.counts: Counter[Kind] = Counter()
        self.captured: list[tuple[Kind, Tensor]] = []


class Guarding:
    """The guards of one context, in all threads."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self.window = Window(account)
        self._thread = Thread()
        self._later: dict[torch.device, Tensor] = {}  # failures of replayed graphs

    def begin(self) -> None:
        """A step of a thread begins."""
        self._thread.counts.clear()

    def end(self) -> None:
        """It ends: what was captured is counted at each replay."""
        thread = self._thread
        thread.products.clear()
        captured, thread.captured = thread.captured, []
        for device in {kind.device for kind, _ in captured}:
            numbers = [each for each in captured if each[0].device == device]
            self._later[device] += sum(failures(*each) for each in numbers)

    def failed_later(self) -> int:
        """Tensors of replayed graphs whose codes were not good enough; waits for the device."""
        return sum(int(found) for found in self._later.values())

    # ---- encoding --------------------------------------------------------------------------------

    def is_refused(self, kept: Kept, kind: Kind) -> bool:
        """Whether a tensor of a graph that is captured was not good enough in the steps before."""
        if not kind.coding.guard:
            return False
        counts = self._thread.counts
        kept.place = kind, counts[kind]
        counts[kind] += 1
        return _is_capturing(kind) and not self.window.decided.get(kept.place, False)

    def room(self, kind: Kind) -> Tensor:
        """Memory for what the encoder measures."""
        if kind.coding.guard != "measured":
            return NO_NUMBERS
        return torch.empty(4, dtype=torch.float32, device=kind.device)

    def add(self, kept: Kept, x: Tensor, kind: Kind, numbers: Tensor) -> None:
        """New codes with what was measured; the original waits for the decision."""
        assert kept.code is not None
        if kind.coding.guard == "range":
            numbers = largest(kept.code)
        if _is_capturing(kind):
            self._thread.captured.append((kind, numbers))
            return
        if kind.index >= 0 and kind.device not in self._later:
            self._later[kind.device] = torch.zeros((), dtype=torch.int64, device=kind.device)
        kept.original = Passed(x)
        self.window.add(kept, kind, *on_host(numbers, kind.index))

    def answers(self, kept: Kept, kind: Kind) -> bool:
        """Whether what was measured, or needs no measure, does for one more consumer."""
        if kept.code is None or kind.coding.guard != "measured":
            return True
        had = kept.kind
        if kind.use.need == NORMALISED:
            return had.use.need == NORMALISED and had.coding.grouping == kind.coding.grouping
        return kind.use.need != LINEAR or had.coding.grouping == kind.coding.grouping

    # ---- products whose results are centred ------------------------------------------------------

    def link(self, kept: Kept, kind: Kind) -> None:
        """Remember a product by the node that is being made."""
        if kind.use.need != LINEAR or not kept.waiting:
            return
        products = self._thread.products
        if len(products) >= MANY:
            products.clear()
        products[torch._C._autograd._get_sequence_nr() - 1] = weakref.ref(kept)

    def centre(self, x: Tensor) -> None:
        """A norm saves x: products that it is the sum of are centred."""
        products = self._thread.products
        nodes, steps = [x.grad_fn], 0
        while products and nodes and steps < STEPS:
            node, steps = nodes.pop(), steps + 1
            if node is None:
                continue
            found = products.get(node._sequence_nr())
            if found is not None and (kept := found()) is not None:
                self.window.centre(kept)
            name = type(node).__name__
            if name in SAME_NUMBERS or name in SUMS:
                nodes += [before for before, _ in node.next_functions]


def largest(code: Tensor) -> Tensor:
    """The largest magnitude of float16 numbers; NaN where one is."""
    numbers = code.view(torch.float16)
    return torch.linalg.vector_norm(numbers, torch.inf, dtype=torch.float32).reshape(1)


def failures(kind: Kind, numbers: Tensor) -> Tensor:
    """On the device: 1 where codes are not good enough, else 0."""
    if kind.coding.guard == "range":
        return (~((numbers[0] <= LARGEST) & ((numbers[0] >= LEAST) | (numbers[0] == 0)))).long()
    good = numbers[0] <= TILE * numbers[1]
    if kind.use.need == NORMALISED:
        good &= numbers[3] <= GROUP
    return (~good).long()


def _is_capturing(kind: Kind) -> bool:
    """Whether a CUDA graph takes what is queued."""
    return kind.index >= 0 and torch.cuda.is_current_stream_capturing()
