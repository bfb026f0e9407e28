# SPDX-License-Identifier: MIT
"""Choose what is saved, encoded or computed again, so that a budget of bytes costs least time.

For each of several budgets PyTorch's partitioner chooses what is computed again, by the bytes of
values and then by those of their codes; of the rest values are encoded, those first that save most
bytes a second, until the budget is met. The cheapest result is chosen; PyTorch's choice without
codes is among them.

Here split(partitioner) splits the joint graph into (forward, backward); `planner` says which codes
each saved value may have; num_outputs are the forward graph's outputs before the saved values; a
plan is a list of `Saved`, one for each saved value.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import torch
from torch._functorch import config, partitioners
from torch.fx import GraphModule, Node

from ...errors import refuse
from .consumers import (
    FORWARD_PRODUCTS,
    PRODUCTS,
    gradients_in,
    is_attention,
    is_tensor,
    packet,
    packets,
)
from .plan import Planner, Saved, nbytes_of, producer_of
from .rewrite import COPY_OF, STAYS, compute_again

NAME = "activation_codes"
UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
# Budgets for PyTorch's partitioner, shares of the bytes that it saves by itself: with 0.999 it
# computes pointwise operators again. LESS: factors of such a share, when it counts bytes of codes.
SHARES = (1.0, 0.999, 0.7, 0.4, 0.2, 0.1)
LESS = (1.0, 0.9, 0.75, 0.6, 0.4, 0.2)
BYTES = 3.0e12  # moved a second, by a GPU of 2023; only ratios matter
OPERATIONS = {2: 6.0e14, 4: 2.5e14}  # a second, by bytes of an element
Graphs = tuple[GraphModule, GraphModule]
Partitioner = Callable[..., Graphs]
MOST_SEEN = 32  # values between a product and what is saved of it
MOST_ROUNDS = 3  # in which more products are computed again
HEAVY = PRODUCTS | packets("convolution")


@dataclass(frozen=True)
class Budget:
    """A limit of bytes: a share of what PyTorch's own choice saves, or, if that is None, nbytes."""

    share: float | None = None
    nbytes: float = math.inf

    def limit(self, plain: int) -> float:
        """Return the limit in bytes; plain: the bytes that PyTorch's own choice saves."""
        return self.nbytes if self.share is None else self.share * plain


@dataclass(frozen=True)
class Partition:
    """Both graphs, the plan of each saved value, and what is computed again."""

    forward: GraphModule
    backward: GraphModule
    plan: list[Saved]
    seconds: float = 0.0  # of a step, estimated: more than with PyTorch's own choice
    recomputed: tuple[Node, ...] = ()  # values that PyTorch's own choice saves
    added: frozenset[str] = frozenset()  # values of the plan that it does not save

    @property
    def nbytes(self) -> int:
        """Return the bytes that are saved, without parameters and inputs."""
        return sum(one.saved_nbytes for one in self.plan if not one.is_free)


def budget_of(value: object) -> Budget | None:
    """Parse a budget: 0.4, "4GB" or None."""
    if value is None:
        return None
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]i?B)\s*", value)
        if match is not None:
            return Budget(nbytes=float(match[1]) * UNITS[match[2]])
    elif isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
        return Budget(share=float(value))
    refuse(NAME, "budget", 'a share in (0, 1] or bytes as "4GB"', repr(value))


def within(
    budget: Budget | None,
    split: Callable[[Partitioner], Graphs],
    planner: Planner,
    num_outputs: int,
) -> Partition:
    """Return the cheapest partition within the budget, or the smallest if there is none.

    Without a budget: PyTorch's choice, with all codes that the planner allows.
    """
    if budget is None:
        forward, backward = split(partitioners.min_cut_rematerialization_partition)
        plan = planner.plan(forward.graph, backward.graph, num_outputs)
        saved = {one.forward.name for one in plan}
        parameters = planner.of_parameters(forward.graph)
        again = compute_again(forward.graph, backward.graph, plan, parameters, num_outputs)
        if again:
            plan = planner.plan(forward.graph, backward.graph, num_outputs)
        added = frozenset(one.forward.name for one in plan) - saved
        return Partition(forward, backward, plan, recomputed=again, added=added)
    search = _Search(budget, split, planner, num_outputs)
    for share in sorted({*SHARES, budget.share or 1.0}, reverse=True):
        if not search.attempt(share):
            break
    needed = search.count_codes()
    for share in LESS if needed < 1 else ():
        if not search.attempt(share * needed):
            break
    assert search.best is not None
    return search.best


class _Search:
    """The best of the partitions that PyTorch makes for several budgets, with codes.

    `attempt` tries a budget; `best` is the best partition so far.
    """

    def __init__(
        self,
        budget: Budget,
        split: Callable[[Partitioner], Graphs],
        planner: Planner,
        num_outputs: int,
    ) -> None:
        self.best: Partition | None = None
        self._budget, self._split = budget, split
        self._planner, self._num_outputs = planner, num_outputs
        self._settings = _Settings()
        self._shares: dict[str, float] = {}  # of bytes that codes take, by name of the value
        self._partitioner = _partitioner(self._settings, self._shares)
        self._again: set[str] = set()  # names of values that follow from codes of others
        self._smallest = math.inf  # bytes, of the partitions that recompute no product
        self._plain: dict[str, Saved] = {}  # what PyTorch's own choice saves, by name
        # The budget in bytes, and seconds in which PyTorch's own choice computes values again.
        self._limit = self._spent = math.inf

    def count_codes(self) -> float:
        """Let PyTorch's partitioner count the bytes of codes in place of those of their values.

        Return limit / bytes of the smallest partition that computes no product again: 1 or more if
        that is within the limit.
        """
        for name, one in self._plain.items():
            if not one.is_free:
                is_again = name in self._again
                self._shares[name] = 0.0 if is_again else one.saved_nbytes / max(one.nbytes, 1)
        return self._limit / max(self._smallest, 1)

    def attempt(self, share: float) -> bool:
        """Let PyTorch's partitioner save a share of the bytes that it saves by itself, add codes,
        and keep the result in `best` if it is better; return False if smaller shares would only
        take longer."""
        self._settings.change(activation_memory_budget=share)
        try:
            forward, backward = self._split(self._partitioner)
        except _SameChoiceError:
            return True
        self._settings.change(cse=False)  # for the next budgets: solutions are by node
        plan = self._planner.plan(forward.graph, backward.graph, self._num_outputs)
        if not self._plain:
            self._plain = {one.forward.name: one for one in plan}
            self._limit = self._budget.limit(sum(one.nbytes for one in plan if not one.is_free))
            self._spent = _recomputation_time(forward, backward)
        seconds = _recomputation_time(forward, backward) - self._spent
        best, limit = self.best, self._limit
        if best is not None and best.nbytes <= limit and seconds >= best.seconds:
            return False
        option = _encode_to_limit(limit, self._partition(forward, backward, plan, seconds))
        if option.nbytes > limit:
            option = self._with_less(option)
        if share >= SHARES[1] and option.nbytes < self._smallest:
            self._smallest = option.nbytes
        if best is None or _is_better(option, best, limit):
            self.best = option
        return True

    def _with_less(self, option: Partition) -> Partition:
        """Return an option with fewer bytes: values that follow from codes are computed again, and
        if it is still beyond the limit, results of products too."""
        less = self._computed_again(option)
        if less is not None:
            self._again = self._again or {node.name for node in less.recomputed}
            option = less
        for _ in range(MOST_ROUNDS):
            products = self._products(option) if option.nbytes > self._limit else ()
            less = self._computed_again(option, products) if products else None
            if less is None:
                break
            option = less
        return option

    def _computed_again(
        self, option: Partition, products: Collection[Saved] = ()
    ) -> Partition | None:
        """Rewrite an option's graphs with `compute_again`; return the new option, or None if
        nothing can be computed again. products: plans of results of products, which alone are
        computed again if there are some."""
        forward, backward = option.forward, option.backward
        parameters = self._planner.of_parameters(forward.graph)
        plan = self._planner.plan(forward.graph, backward.graph, self._num_outputs)
        if not compute_again(
            forward.graph, backward.graph, plan, parameters, self._num_outputs, products
        ):
            return None
        plan = self._planner.plan(forward.graph, backward.graph, self._num_outputs)
        seconds = _recomputation_time(forward, backward) - self._spent
        return _encode_to_limit(self._limit, self._partition(forward, backward, plan, seconds))

    def _products(self, option: Partition) -> list[Saved]:
        """Return saved results of products, as many as the limit asks for, those first whose bytes
        cost least time. About half of an operand's bytes are lost: it has no codes then."""
        parameters = self._planner.of_parameters(option.forward.graph)
        candidates = []  # (seconds a byte, bytes, plan of the value)
        for one in option.plan:
            product = producer_of(one.forward)
            if packet(product.target) not in FORWARD_PRODUCTS or one.reason in STAYS:
                continue
            operands = [x for x in product.all_input_nodes if x not in parameters]
            gain = one.saved_nbytes - sum(nbytes_of(x.meta["val"]) for x in operands) // 2
            if gain > 0:
                candidates.append((_time_of(product) / gain, gain, one))
        left = option.nbytes - self._limit
        chosen = []
        for _, gain, one in sorted(candidates, key=operator.itemgetter(0)):
            if left > 0:
                chosen.append(one)
                left -= gain
        return chosen

    def _partition(
        self, forward: GraphModule, backward: GraphModule, plan: list[Saved], seconds: float
    ) -> Partition:
        """Make a partition that names its differences from PyTorch's own choice."""
        names = {one.forward.name for one in plan}
        again = tuple(one.forward for name, one in self._plain.items() if name not in names)
        return Partition(forward, backward, plan, seconds, again, frozenset(names - {*self._plain}))


def _is_better(one: Partition, other: Partition, limit: float) -> bool:
    """Return True if `one` is faster with both within the limit, else if it is smaller."""
    if max(one.nbytes, other.nbytes) <= limit:
        return one.seconds < other.seconds
    return one.nbytes < other.nbytes


def _encode_to_limit(limit: float, partition: Partition) -> Partition:
    """Return a partition with codes, of its plan, for as many values as meet the limit in bytes,
    those first that cost least time for a saved byte.

    Values that share the codes of a sum, dropped and absorbing ones, stay encoded together.
    """
    plan = partition.plan
    coded = [i for i, one in enumerate(plan) if one.format is not None or one.is_dropped]
    costs = {i: _coding_time(plan[i]) for i in coded}
    left = sum(one.nbytes for one in plan if not one.is_free)
    seconds = partition.seconds
    chosen = list(plan)
    for i in sorted(coded, key=lambda i: costs[i] / max(plan[i].nbytes - plan[i].saved_nbytes, 1)):
        is_optional = plan[i].source is not None or not (plan[i].is_dropped or plan[i].absorbs)
        if left <= limit and costs[i] >= 0 and is_optional:
            chosen[i] = plan[i].without_codes("within the budget")
        else:
            left -= plan[i].nbytes - plan[i].saved_nbytes
            seconds += costs[i]
    return replace(partition, plan=chosen, seconds=seconds)


def _coding_time(one: Saved) -> float:
    """Estimate the seconds that codes cost by the plan of one value, from the additional bytes
    moved.

    The forward pass writes codes, and reads the value again unless its operator is pointwise, with
    which the encoder fuses. The backward pass reads codes in place of the value; for products, with
    which no decoder fuses, it reads codes, writes the value and reads it. The sum may be negative.
    A cast that is computed again reads the parameter and writes the cast.
    """
    if one.source is not None:
        return (nbytes_of(one.source.meta["val"]) + one.nbytes) / BYTES
    if one.is_dropped:
        return 0.0
    moved = (
        one.saved_nbytes
        if torch.Tag.pointwise in getattr(one.forward.target, "tags", ())
        else (one.saved_nbytes + one.nbytes)
    )
    if any(_is_heavy(user) for user in one.point.users):
        return (moved + one.saved_nbytes + one.nbytes) / BYTES
    return (moved + one.saved_nbytes - one.nbytes) / BYTES


def _is_heavy(node: Node) -> bool:
    """Return True for products, convolutions and attention, which fuse with no operand."""
    return packet(node.target) in HEAVY or is_attention(node)


def _recomputation_time(forward: GraphModule, backward: GraphModule) -> float:
    """Estimate the seconds of recomputation in the backward graph: of products, and of writing and
    reading the operands of these; other operators fuse with those that read them."""
    computed = {node.name for node in forward.graph.nodes if node.op == "call_function"}
    gradients = gradients_in(backward.graph)
    seconds = 0.0
    for node in backward.graph.nodes:
        name = node.meta.get(COPY_OF, node.name)
        if node.op != "call_function" or node in gradients or name not in computed:
            continue
        if _is_heavy(node):
            seconds += _time_of(node)
        elif is_tensor(node) and any(_is_heavy(user) for user in node.users):
            seconds += 2 * nbytes_of(node.meta["val"]) / BYTES  # read and written
    return seconds


def _time_of(node: Node) -> float:
    """Estimate the seconds of an operator by PyTorch's count of its operations."""
    size = max(read.meta["val"].dtype.itemsize for read in node.all_input_nodes if is_tensor(read))
    settings = _Settings()
    settings.change(activation_memory_budget_runtime_estimator="flops")
    names = vars(partitioners) | {"config": settings}
    operations = float(_copy(partitioners.estimate_runtime, names)(node))
    return operations / OPERATIONS.get(size, OPERATIONS[4])


class _SameChoiceError(Exception):
    """Raised if a budget leads to the same saved values as another."""


class _Settings:
    """PyTorch's settings of its partitioner, with changes for one caller only."""

    def change(self, **changes: object) -> None:
        vars(self).update(changes)

    def __getattr__(self, name: str) -> object:
        return getattr(config, name)


def _partitioner(settings: _Settings, shares: Mapping[str, float]) -> Partitioner:
    """Return a copy of PyTorch's partitioner that caches what does not depend on the budget.

    settings: in place of PyTorch's. shares: factors of the bytes of some values, by name, that it
    counts; also of values from which these follow (`_share_of`).

    It raises _SameChoiceError if it would save the same values as for an earlier budget. The copy
    has its own globals, where these helpers are replaced without an effect on other threads.
    """
    solve_min_cut = partitioners.solve_min_cut
    solutions: dict[object, Any] = {}

    # Each in place of the PyTorch function that it calls.
    def solve_once(graph: Any, info: Any, options: Any, dont_ban: Iterable[Node] = ()) -> Any:
        """Return (saved, banned nodes), solved once for the same options and nodes not to ban."""
        key = (repr(options), frozenset(dont_ban or ()))
        if key not in solutions:
            solutions[key] = solve_min_cut(graph, info, options, dont_ban or None)
        saved, banned = solutions[key]
        return list(saved), type(banned)(banned)

    def size_of(node: Node) -> float:
        """Return the bytes that PyTorch's knapsack counts for a value."""
        return float(partitioners._size_of(node)) * _share_of(node, shares)

    choices: set[frozenset[Node]] = set()

    def choose_another(*arguments: Any, **named: Any) -> list[Node]:
        """Return the values to save; raise _SameChoiceError if an earlier budget led to them."""
        saved: list[Node] = choose(*arguments, **named)
        # Ranks that decide together have to make the same calls.
        if frozenset(saved) in choices and not config._sync_decision_cross_ranks:
            raise _SameChoiceError
        choices.add(frozenset(saved))
        return saved

    names = vars(partitioners) | {
        "config": settings,
        "solve_min_cut": solve_once,
        "_size_of": size_of,
        "classify_nodes": _once(partitioners.classify_nodes),
        "estimate_runtime": functools.cache(partitioners.estimate_runtime),
    }
    choose = _copy(partitioners.choose_saved_values_set, names)
    names["choose_saved_values_set"] = choose_another
    return _copy(partitioners.min_cut_rematerialization_partition, names)


def _share_of(node: Node, shares: Mapping[str, float]) -> float:
    """Return the share of a value, or of the first one that follows from it by cheap operators, or
    1 if there is none."""
    if not shares or node.name in shares:
        return shares.get(node.name, 1.0)
    waiting, seen = [node], {node}
    while waiting and len(seen) <= MOST_SEEN:
        users = [user for user in waiting.pop(0).users if user not in seen and not _is_heavy(user)]
        share = max((shares.get(user.name, 0.0) for user in users), default=0.0)
        if share:
            return share
        seen.update(users)
        waiting += users
    return 1.0


def _once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `function` the first time, and then returns the same result."""
    results: list[Any] = []

    def call(*arguments: Any, **named: Any) -> Any:
        if not results:
            results.append(function(*arguments, **named))
        return results[0]

    return call


def _copy(function: Callable[..., Any], names: dict[str, Any]) -> Callable[..., Any]:
    """Copy a Python function, with other globals."""
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
