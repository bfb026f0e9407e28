# SPDX-License-Identifier: MIT
"""Memory that one call writes and another argument of it shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..errors import ArgumentError

Span = tuple[int, int]  # first address, and the first one after it


class Written(NamedTuple):
    """An array that a call writes, by its place among the call's arrays.

    `partners` are the places of inputs that may be the very same array.
    """

    place: int
    partners: tuple[int, ...] = ()


class Overlap:
    """The check of one kind of call: nothing that it writes shares memory with anything else."""

    def __init__(
        self, op: str, names: Sequence[str], written: Sequence[Written], unread: Sequence[int] = ()
    ) -> None:
        self._op = op
        self._names = names
        self._written = tuple(written)
        self._places = frozenset(w.place for w in written)
        self._unread = tuple(unread)  # places of inputs that a call does not look at

    def refuse(self, arrays: Sequence[Any], pointer: Callable[[Any], int]) -> None:
        """Raise ArgumentError where two of the arrays, one of them written, share memory."""
        spans = [
            (0, 0)
            if array is None or not (nbytes := array.nbytes)
            else (start := pointer(array), start + nbytes)
            for array in arrays
        ]
        for place in self._unread:
            spans[place] = (0, 0)
        if len(self._written) == 1:
            self._compare(spans, self._written[0])
        else:
            self._sweep(spans)

    def _compare(self, spans: list[Span], written: Written) -> None:
        """The common case: one written array against all others."""
        start, end = own = spans[written.place]
        for place, span in enumerate(spans):
            if span[0] < end and start < span[1] and place != written.place:
                if span == own and place in written.partners:
                    continue
                self._raise(place, written.place)

    def _sweep(self, spans: list[Span]) -> None:
        """In the order of addresses, each span with the one before it that ends last."""
        same = {p for w in self._written for p in w.partners if spans[p] == spans[w.place]}
        every = written = (0, -1)  # the end and the place of what ends last
        for (start, end), place in sorted(
            (span, place) for place, span in enumerate(spans) if span[1] and place not in same
        ):
            is_written = place in self._places
            before, other = every if is_written else written
            if start < before:
                self._raise(*sorted((other, place), key=lambda p: (p in self._places, p)))
            if end > every[0]:
                every = end, place
            if is_written and end > written[0]:
                written = end, place

    def _raise(self, other: int, place: int) -> None:
        raise ArgumentError(
            f"{self._op}: {self._names[place]}: expected memory of its own, "
            f"got memory shared with {self._names[other]}"
        )
