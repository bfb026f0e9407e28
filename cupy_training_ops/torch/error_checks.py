# SPDX-License-Identifier: MIT
"""Error checks of a context: what is measured of codes, and which codes are then rejected.

A norm that subtracts feature means makes the gradient of the product before it independent of
these, and nearly that of earlier products; their codes have to be exact enough without the means.
It is noticed when the norm saves its input: products are known by their nodes' sequence numbers.

An `Entry` has the codes of one saved tensor, and the tensor until its check is decided. Its `Kind`
says how tensors alike are encoded and checked, and what their consumer needs.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from torch import Tensor

from ..activations import pending
from ..activations.error_check import LINEAR, NORMALISED, PRODUCT, RANGE, TILES, ErrorCheck
from ..activations.pending import PendingCheck, Step
from .pinned import NUMBERS, PinnedNumbers, read_later
from .save_rules import LEAF_NODE, SAME_NUMBERS
from .saved import MANY, Entry, Kind, Untouched

# Names of nodes through which the products before a norm are searched.
SUMS = frozenset(f"{name}Backward{i}" for i in (0, 1) for name in ("Add", "Sub"))
SLOPES = frozenset(f"{name}Backward0" for name in ("Relu", "LeakyRelu", "Gelu", "Silu"))
LOOKED_BEHIND = SAME_NUMBERS | SUMS | SLOPES
STEPS = 64  # nodes before a norm that are searched for products
# The sequence number of the next node; next_node() - 1 is that of the node that is saving.
next_node = torch._C._autograd._get_sequence_nr


class Operand(PendingCheck):
    """A pending check of an operand of a product, which a later norm or operand may make fail.

    numbers: what the encoder measured, readable after the event, or at once if that is None.
    Both operands of a product of activations pass or fail together, as the error of one is
    multiplied by the means of the other. is_centred: a norm subtracts the feature means of the
    product's result.
    """

    may_be_centred = True

    def __init__(
        self, entry: Entry, kind: Kind, numbers: Any, event: Any, operands: list[Operand] | None
    ) -> None:
        self.entry, self.kind, self.is_centred = weakref.ref(entry), kind, entry.is_centred
        self.check, self.nbytes, self.numbers, self.event = kind.check, kind.nbytes, numbers, event
        self.operands = operands  # all of its product; None if it is the only activation
        if operands is not None:
            operands.append(self)

    def may_end(self, newest: Any) -> bool:
        """Return True unless more operands of its product may come."""
        return self.operands is None or newest is None or self.operands is not newest.operands

    def is_ready(self) -> bool:
        """Return True if the numbers of all operands can be read without a wait."""
        if self.operands is None:
            if self.event is not None and self.event.query():
                self.event = None
            return self.event is None
        return all([PendingCheck.is_ready(each) for each in self.operands])

    def failure(self) -> str:
        """Return why the codes of any operand fail, or ""."""
        if self.operands is not None:
            for each in self.operands:
                if each.numbers is not None:
                    each.read_numbers()
                if each.reason:
                    return each.reason
        else:
            if self.numbers is not None:
                self.read_numbers()
            if self.reason:
                return self.reason
        return "features" if self.is_centred and not self.features else ""


class PendingChecks(pending.PendingChecks):
    """Pending checks whose results may depend on later operands of a product, or on a norm."""

    def close_product(self, operands: list[Operand]) -> None:
        """Decide about the operands of a product, which has all of them now."""
        with self.lock:
            for check in operands:
                entry = check.entry()
                if entry is not None and check.is_ready():
                    self._settle(check, entry)

    def centre(self, entry: Entry) -> None:
        """Note that a norm subtracts the feature means of a product's result; entry: its operand.

        Decides checks whose numbers were read. Closed ones, with many bytes added since, stay.
        """
        with self.lock:
            entry.is_centred = True
            for check in entry.pending:
                check.is_centred = check.is_centred or not check.is_closed
                if check.numbers is None:
                    self._settle(check, entry)


class ThreadState(threading.local):
    """A thread's products, and the number of tensors of each kind in this step."""

    def __init__(self) -> None:
        self.products: dict[int, weakref.ref[Entry]] = {}  # operands by nodes' sequence numbers
        self.counts: dict[Kind, int] = {}  # tensors of each kind so far in this step
        self.captured: list[tuple[ErrorCheck, Tensor]] = []  # checks, and numbers at replay
        self.product = -1  # sequence number of the product whose operands are being saved
        self.operands: list[Operand] = []  # of that product


class ErrorChecks:
    """The error checks of one context, in all threads."""

    def __init__(self, last: Step | None = None) -> None:
        self.pending = PendingChecks(last=last)
        self._thread = ThreadState()
        self._later: dict[torch.device, Tensor] = {}  # counts of failures in replayed graphs

    def begin_step(self) -> None:
        """Begin a thread's step."""
        self._thread.counts.clear()

    def end_step(self) -> None:
        """End a thread's step; captures the count of failures for each replay."""
        thread = self._thread
        self._operands(-1)
        self.pending.end_step()
        captured, thread.captured = thread.captured, []
        for check, numbers in captured:
            self._later[numbers.device] += (~check.passes(numbers)).long()

    def failed_later(self) -> int:
        """Count tensors of replayed graphs whose codes failed; waits for the device."""
        return sum(int(count) for count in self._later.values())

    # ---- encoding --------------------------------------------------------------------------------

    def rejects(self, entry: Entry, kind: Kind, is_captured: bool) -> bool:
        """Return True if a CUDA graph is being captured (is_captured) and this tensor's codes did
        not pass in an earlier step.

        Sets entry.place, kind.number + i for the i-th tensor of its kind in a step.
        """
        counts = self._thread.counts
        n = counts.get(kind, 0)
        counts[kind], entry.place = n + 1, kind.number + n
        return is_captured and not self.pending.decisions.get(entry.place, False)

    def add(
        self, entry: Entry, x: Tensor, kind: Kind, numbers: Any, original: Untouched | None
    ) -> None:
        """Add a check of new codes of x.

        numbers: what the encoder measured, or None. original: the uncompressed tensor, referenced
        until the check is decided; None if a CUDA graph is captured, whose failures are counted at
        replay.
        """
        if kind.measure == RANGE:
            numbers = measure_range(entry.code, x.detach(), kind)
        if original is None:
            self._thread.captured.append((kind.check, numbers))
            return
        index = kind.index
        if index >= 0 and kind.form.device not in self._later:
            device = kind.form.device
            self._later[device] = torch.zeros((), dtype=torch.int64, device=device)
        entry.original = original
        node = next_node() - 1 if kind.use.need == PRODUCT else -1
        operands = None if node == self._thread.product == -1 else self._operands(node)
        check = Operand(entry, kind, *read_later(numbers, index), operands)
        self.pending.add(check, entry, kind.coding.code_nbytes)

    def _operands(self, node: int) -> list[Operand] | None:
        """Return the list of operands of a product, to which the next one is appended.

        node: the sequence number of the product's node; -1: no product of activations, which has
        None. The operands of the product before it are complete, and are decided.
        """
        thread = self._thread
        if thread.product != node:
            if thread.operands:
                self.pending.close_product(thread.operands)
            thread.product, thread.operands = node, []
        return thread.operands if node >= 0 else None

    def covers(self, entry: Entry, kind: Kind) -> bool:
        """Return True if the check of an entry's codes suffices for a consumer of this kind.

        Norms and products of activations need a check of their own need and groups, products with
        parameters one of their groups; other consumers any.
        """
        if entry.code is None or kind.measure != TILES:
            return True
        old, new = entry.kind.check, kind.check
        if new.need in (NORMALISED, PRODUCT):
            return old.need == new.need and old.grouping == new.grouping
        return new.need != LINEAR or old.grouping == new.grouping

    # ---- products followed by a norm -------------------------------------------------------------

    def remember_product(self, entry: Entry) -> None:
        """Remember an operand of a product by the node that is saving it, for `centre`."""
        if not entry.pending:
            return
        products = self._thread.products
        if len(products) >= MANY:
            for node in [*products][: MANY // 2]:  # the oldest, which no norm is near to
                del products[node]
        products[next_node() - 1] = weakref.ref(entry)

    def centre(self, x: Tensor) -> None:
        """Mark the products before a norm as centred: the norm subtracts the feature means of x.

        Searches x's autograd graph backward through products, sums, views and activations, at
        most STEPS nodes. y = norm(a @ v + b @ w) marks the operands of both products.
        """
        products = self._thread.products
        nodes, steps = [x.grad_fn], 0
        while products and nodes and steps < STEPS:
            node, steps = nodes.pop(), steps + 1
            if node is None:
                continue
            reference = products.get(node._sequence_nr())
            entry = None if reference is None else reference()
            if entry is not None:
                self.pending.centre(entry)
            if entry is not None or type(node).__name__ in LOOKED_BEHIND:
                inputs = [function for function, _ in node.next_functions]
                nodes += [function for function in inputs if type(function) is not LEAF_NODE]


def measure_range(code: Tensor, x: Tensor, kind: Kind) -> Tensor:
    """Return (largest magnitude,) of x's float16 codes; for a product's operand also the sums over
    features of variances and of squared means, as a softmax after the product ignores means."""
    largest = torch.linalg.vector_norm(code.view(torch.float16), torch.inf, dtype=torch.float32)
    if kind.use.need != PRODUCT:
        return largest.reshape(1)
    others = [d for d in range(x.dim()) if d not in kind.use.groups]
    variance, mean = torch.var_mean(x, others, correction=0)
    return torch.stack([largest, variance.float().sum(), mean.float().square().sum()])


def empty_numbers(kind: Kind, captured: bool) -> Tensor | PinnedNumbers:
    """Allocate memory for the NUMBERS that an encoder measures: page-locked, unless a graph is
    captured."""
    if kind.index >= 0 and not captured:
        return PinnedNumbers(kind.index)
    return torch.empty(NUMBERS, dtype=torch.float32, device=kind.form.device)


def is_captured(kind: Kind) -> bool:
    """Return True if a CUDA graph is being captured."""
    return kind.index >= 0 and torch.cuda.is_current_stream_capturing()
