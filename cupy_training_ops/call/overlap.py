# SPDX-License-Identifier: MIT
"""Checks that what a call writes shares no memory with its other arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..errors import ArgumentError

Span = tuple[int, int]  # first address, and the first one after it
Addresses = np.ndarray[Any, np.dtype[np.int64]]

_LAST = 2**63 - 1  # above all addresses
MANY = 32  # spans; from here on NumPy is faster than Python


class Written(NamedTuple):
    """Index of an array that a call writes; partners: inputs that may be the same array."""

    place: int
    partners: tuple[int, ...] = ()


class Overlap:
    """The check of a cached call: nothing that it writes shares memory with another array."""

    def __init__(
        self,
        op: str,
        names: Sequence[str],
        sizes: Sequence[int],
        written: Sequence[Written],
        not_accessed: Sequence[int] = (),
    ) -> None:
        """Note arrays by index: names for messages, sizes in bytes (0: absent), which are written.

        op: the operator's name. not_accessed: indices of arrays whose elements the call does not
        look at.
        """
        self._op = op
        self._names = names
        self._sizes = [0 if place in not_accessed else n for place, n in enumerate(sizes)]
        self._written = tuple(written)
        self._places = frozenset(w.place for w in written)
        self._is_written = np.isin(np.arange(len(sizes)), list(self._places))
        self._n_bytes = np.array(self._sizes, np.int64)
        self._partners = [(w.place, p) for w in written for p in w.partners]
        self._apart: Sequence[int] = ()  # the addresses that passed last

    def involves(self, places: Sequence[int]) -> bool:
        """Return True if one of the arrays at these indices is written, or may be a written one."""
        named = self._places | {partner for _, partner in self._partners}
        return not named.isdisjoint(places)

    def spans(self, addresses: Sequence[int]) -> list[Span]:
        """Return the spans (start, end) of written arrays, sorted; addresses: of all arrays."""
        written = ((addresses[p], addresses[p] + self._sizes[p]) for p in self._places)
        return sorted((start, end) for start, end in written if start < end)

    def sizes(self, places: Sequence[int]) -> list[int]:
        """Return the sizes in bytes of the arrays at these indices."""
        return [self._sizes[place] for place in places]

    def refuse(self, addresses: Sequence[int]) -> None:
        """Raise ArgumentError if a written array shares memory with another.

        addresses: of all arrays, in the order of `sizes`.
        """
        if addresses == self._apart:
            return
        if len(self._written) == 1:
            self._compare(addresses, self._written[0])
        elif len(addresses) < MANY or self._any_shared(addresses):
            self._sweep(addresses)
        self._apart = addresses

    def _compare(self, addresses: Sequence[int], written: Written) -> None:
        """Compare one written array, the common case, with all others, at these addresses."""
        start, size = addresses[written.place], self._sizes[written.place]
        if not size:
            return
        end = start + size
        for place, (other, other_size) in enumerate(zip(addresses, self._sizes, strict=True)):
            if other < end and start < other + other_size and other_size and place != written.place:
                if (other, other_size) == (start, size) and place in written.partners:
                    continue
                self._raise(place, written.place)

    def _any_shared(self, addresses: Sequence[int]) -> bool:
        """Return True if `_sweep` would refuse, by the same rule for all spans at once.

        In the order of addresses a written span must start after all earlier ones end, a read one
        after all earlier written ones: `last` and `last_written` are those ends, as running maxima.
        """
        starts = np.array(addresses, np.uint64).astype(np.int64)
        counted = self._n_bytes > 0
        if self._partners:
            counted[list(self._same(addresses))] = False
        places = np.flatnonzero(counted)
        places = places[np.argsort(starts[places], kind="stable")]
        first, is_written = starts[places], self._is_written[places]
        ends = first + self._n_bytes[places]
        last = np.maximum.accumulate(ends)[:-1]
        last_written = np.maximum.accumulate(np.where(is_written, ends, 0))[:-1]
        return bool(np.any(first[1:] < np.where(is_written[1:], last, last_written)))

    def _sweep(self, addresses: Sequence[int]) -> None:
        """Raise if spans overlap of which one is written. Each is compared, in the order of
        addresses, with the earlier one that ends last: of all if it is written, else of written."""
        same = self._same(addresses)
        every = written = (0, -1)  # (end, index) of the span that ends last
        pairs = enumerate(zip(addresses, self._sizes, strict=True))
        spans = ((start, start + n, p) for p, (start, n) in pairs if n and p not in same)
        for start, end, place in sorted(spans):
            is_written = place in self._places
            before, other = every if is_written else written
            if start < before:
                self._raise(*sorted((other, place), key=lambda p: (p in self._places, p)))
            if end > every[0]:
                every = end, place
            if is_written and end > written[0]:
                written = end, place

    def _same(self, addresses: Sequence[int]) -> frozenset[int]:
        """Return indices of inputs that are, as they may be, the very array that is written."""
        sizes = self._sizes
        return frozenset(
            p for w, p in self._partners if addresses[p] == addresses[w] and sizes[p] == sizes[w]
        )

    def _raise(self, other: int, place: int) -> NoReturn:
        """Raise for the array with index `place`, which shares memory with `other`."""
        raise ArgumentError(
            f"{self._op}: {self._names[place]}: expected memory of its own, "
            f"got memory shared with {self._names[other]}"
        )


class RepeatedOverlap:
    """An `Overlap` check for repeated calls in which only some arrays are new.

    If these are only read, they are compared with the written spans alone, which stay the same.
    """

    def __init__(self, overlap: Overlap, places: Sequence[int]) -> None:
        """overlap: the check of all arrays. places: indices of those that are new at each call."""
        self._overlap, self._places = overlap, np.array(places, np.intp)
        self._is_simple = bool(places) and not overlap.involves(places)
        self._sizes = np.array(overlap.sizes(places), np.int64)
        self._known: Addresses | None = None  # written spans, sorted

    def refuse(self, addresses: Addresses) -> None:
        """Raise ArgumentError if a written array shares memory; addresses: of all arrays."""
        known = self._known
        if known is None or self._may_share(addresses[self._places], known):
            every = addresses.tolist()
            self._overlap.refuse(every)
            if self._is_simple:
                spans = [*self._overlap.spans(every), (_LAST, _LAST)]
                self._known = np.array(spans, np.int64)

    def _may_share(self, first: Addresses, spans: Addresses) -> bool:
        """Return True if a new array overlaps a span.

        first: addresses of the new arrays. spans: rows (start, end), sorted; none overlap. Of each
        array only the first span that ends after its start is compared.
        """
        starts, ends = spans.T
        next_to_end = np.searchsorted(ends, first, side="right")
        return bool(np.any((starts[next_to_end] < first + self._sizes) & (self._sizes > 0)))
