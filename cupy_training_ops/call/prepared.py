# SPDX-License-Identifier: MIT
"""Facts of a cached call (`Prepared`): its arguments, its results, and which arrays it writes."""

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

Arguments = tuple[Any, ...]  # as the caller passed them
Arrays = tuple[Array | None, ...]
HostValue = HostArray | Changing
T = TypeVar("T")


@dataclass(frozen=True)
class Result:
    """One output array of a call; array indices count the inputs' arrays, lists flattened."""

    name: str
    spec: Spec | None  # None: not computed
    value: HostValue | None = None  # of a host output; None: it is on a device
    alias: int | None = None  # index of the array that it overwrites, if there is no out=
    shareable: tuple[int, ...] = ()  # indices of the arrays that out= may be
    computed: bool = True  # the CPU provider's function returns it
    open: Open | None = None  # for an array whose shape only the caller's function knows
    order: Order | None = None  # of its dimensions in memory, if it differs from other arrays'
    returned: bool = True  # False: an updated input that was not asked for

    @property
    def is_new(self) -> bool:
        """Return True if the result is a new array."""
        return self.spec is not None and self.value is None and self.alias is None


@dataclass(frozen=True)
class Named:
    """An input array of a call: its name in messages, its info, and its declared input."""

    name: str
    info: ArrayInfo | None  # None: optional, and not passed
    declared: Input

    @property
    def nbytes(self) -> int:
        """Bytes of the array that a call reads or writes; 0 if it does not access its elements."""
        if self.info is None or self.declared.not_accessed:
            return 0
        return self.info.spec.nbytes


@dataclass(frozen=True)
class Prepared:
    """Facts of a cached call: its arguments and results. Indices count inputs or arrays."""

    op: str
    inputs: tuple[Input, ...]
    fixed: tuple[object, ...]  # frozen values of static host inputs, None elsewhere
    changing: tuple[int, ...]  # indices of inputs whose values differ from call to call
    arrays: tuple[Named, ...]  # variadic inputs flattened
    results: tuple[Result, ...]
    out: tuple[ArrayInfo | None, ...]  # for each result the caller's array, or None
    counts: tuple[int | None, ...]  # for each output the length of its list, or None
    placement: ArrayInfo  # of any array: its backend and device are those of the call
    order: Order | None = None  # of dimensions in memory, if arrays are not C-contiguous
    checks: tuple[Callable[..., None], ...] = ()  # of all inputs, which read arrays' values
    check_numbers: Callable[[Mapping[int, object]], None] | None = None  # that change, by index
    detaches: bool = False  # accepts tensors that require gradients
    supplied: int | None = None  # index of the input that the operator supplies, as a seed
    supply: Callable[..., object] | None = None  # from all inputs to its value
    always: object = None  # its value, if it is the same at each call

    @property
    def names(self) -> list[str]:
        """Names in messages: of the arrays, then of `out`."""
        return [a.name for a in self.arrays] + [f"out ({r.name})" for r in self.results]

    @property
    def groups_outputs(self) -> bool:
        """Return True if there are several outputs and one is a list."""
        return len(self.counts) > 1 and any(count is not None for count in self.counts)


def group(flat: Sequence[T], counts: Sequence[int | None]) -> tuple[T | tuple[T, ...], ...]:
    """Group arrays by output: (a, b, c) with counts (None, 2) is (a, (b, c))."""
    items = iter(flat)
    return tuple(next(items) if n is None else tuple(itertools.islice(items, n)) for n in counts)


def flatten(out: Sequence[Any], counts: Sequence[int | None]) -> Arguments:
    """Flatten `out`: with counts (None, 2) it is (a, b, c) for (a, (b, c)).

    None in place of a list becomes as many None.
    """
    flat: list[Any] = []
    for item, count in zip(out, counts, strict=True):
        flat += [item] if count is None else [None] * count if item is None else item
    return tuple(flat)


def list_writes(prepared: Prepared) -> Iterator[Written]:
    """Yield the index of each array that a call writes, and the inputs that may be that very array.

    First, in the order of results, arrays of `out`, whose indices follow those of the inputs, or
    inputs that a result overwrites; then inputs that are updated without a result.
    """
    n_arrays = len(prepared.arrays)
    pairs = zip(prepared.results, prepared.out, strict=True)
    for place, (result, info) in enumerate(pairs, n_arrays):
        if info is not None:
            yield Written(place, result.shareable)
        elif result.spec is not None and result.alias is not None:
            partners = tuple(p for p in result.shareable if p != result.alias)
            yield Written(result.alias, partners)
    aliased = {r.alias for r in prepared.results if r.spec is not None}
    for place, array in enumerate(prepared.arrays):
        if array.declared.updated and array.info is not None and place not in aliased:
            yield Written(place)


def overlap(prepared: Prepared) -> Overlap | None:
    """Return the check for overlap; None if a call writes none of the caller's arrays."""
    writes = tuple(list_writes(prepared))
    if not writes:
        return None
    sizes = [array.nbytes for array in prepared.arrays]
    if any(prepared.out):
        sizes += [0 if info is None else info.spec.nbytes for info in prepared.out]
    return Overlap(prepared.op, prepared.names, sizes, writes)
