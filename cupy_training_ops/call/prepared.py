# SPDX-License-Identifier: MIT
"""Calls of one kind: what they share, their results, and what they write."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..backend import Array, ArrayInfo
from ..declare.schema import Changing, Input, Open, Spec
from ..dtypes import HostArray
from .layout import Order
from .overlap import Overlap, Written

Arguments = tuple[Any, ...]  # as the caller gave them
Arrays = tuple[Array | None, ...]
HostValue = HostArray | Changing
T = TypeVar("T")


@dataclass(frozen=True)
class Result:
    """One output of a call, a variadic one taken apart.

    `spec` is None for an output that is not computed; `returned` is False where its array is
    updated, but was not asked for; `value` is the content of a host output;
    `alias` is the place of the array it is written into, `shareable` those that `out=` may be;
    `computed` says that the CPU provider's function returns it; `open` is what is known of an array
    whose shape only a function of the caller's knows; `order` is that of its dimensions in memory
    where it is its own.
    """

    name: str
    spec: Spec | None
    value: HostValue | None = None
    alias: int | None = None
    shareable: tuple[int, ...] = ()
    computed: bool = True
    open: Open | None = None
    order: Order | None = None
    returned: bool = True

    @property
    def is_new(self) -> bool:
        """Return True if the result is computed into an array of its own, and no input's."""
        return self.spec is not None and self.value is None and self.alias is None


@dataclass(frozen=True)
class Named:
    """An array of a call: its name in messages, what is known of it, and its declared input."""

    name: str
    info: ArrayInfo | None
    declared: Input

    @property
    def nbytes(self) -> int:
        """Bytes that a call looks at."""
        if self.info is None or self.declared.not_accessed:
            return 0
        return self.info.spec.nbytes


@dataclass(frozen=True)
class Prepared:
    """Record of all that calls of one kind share."""

    op: str
    inputs: tuple[Input, ...]
    fixed: tuple[object, ...]  # frozen values of static host inputs, None elsewhere
    changing: tuple[int, ...]  # inputs, by place, whose values each call gives
    arrays: tuple[Named, ...]  # variadic inputs taken apart
    results: tuple[Result, ...]
    out: tuple[ArrayInfo | None, ...]  # the caller's outputs
    counts: tuple[int | None, ...]  # arrays of each declared output, None for one that is no list
    placement: ArrayInfo
    order: Order | None = None  # of the dimensions in memory, where arrays are not C-contiguous
    checks: tuple[Callable[..., None], ...] = ()
    check_numbers: Callable[[Mapping[int, object]], None] | None = None  # that change, by place
    detaches: bool = False  # takes as data what requires gradients
    supplied: int | None = None  # the input, by place, that the operator supplies at each call
    supply: Callable[..., object] | None = None
    always: object = None  # what it supplies, where that is the same at each call

    @property
    def names(self) -> list[str]:
        """Names of the arrays in messages, the caller's outputs behind them."""
        return [a.name for a in self.arrays] + [f"out ({r.name})" for r in self.results]

    @property
    def groups_outputs(self) -> bool:
        """Return True if lists come back in tuples of their own, beside other outputs."""
        return len(self.counts) > 1 and any(count is not None for count in self.counts)


def group(flat: Sequence[T], counts: Sequence[int | None]) -> tuple[T | tuple[T, ...], ...]:
    """Outputs as declared: a tuple for each that is a list."""
    items = iter(flat)
    return tuple(next(items) if n is None else tuple(itertools.islice(items, n)) for n in counts)


def flatten(out: Sequence[Any], counts: Sequence[int | None]) -> Arguments:
    """The caller's outputs one by one; None for a list stands for one that is not given."""
    flat: list[Any] = []
    for item, count in zip(out, counts, strict=True):
        flat += [item] if count is None else [None] * count if item is None else item
    return tuple(flat)


def list_writes(prepared: Prepared) -> Iterator[Written]:
    """Yield what a call writes, by place: arrays first, then the caller's outputs."""
    n_arrays = len(prepared.arrays)
    pairs = zip(prepared.results, prepared.out, strict=True)
    for place, (result, given) in enumerate(pairs, n_arrays):
        if given is not None:
            yield Written(place, result.shareable)
        elif result.spec is not None and result.alias is not None:
            partners = tuple(p for p in result.shareable if p != result.alias)
            yield Written(result.alias, partners)
    aliased = {r.alias for r in prepared.results if r.spec is not None}
    for place, array in enumerate(prepared.arrays):
        if array.declared.updated and array.info is not None and place not in aliased:
            yield Written(place)


def overlap(prepared: Prepared) -> Overlap | None:
    """The check of what a call writes; None where it writes no array that it is given."""
    writes = tuple(list_writes(prepared))
    if not writes:
        return None
    sizes = [array.nbytes for array in prepared.arrays]
    if any(prepared.out):
        sizes += [0 if given is None else given.spec.nbytes for given in prepared.out]
    return Overlap(prepared.op, prepared.names, sizes, writes)
