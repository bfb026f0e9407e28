# SPDX-License-Identifier: MIT
"""The arguments of a plan's kernels in memory, as the driver takes them.

A launch takes the addresses of its arguments. Those stay, so that a call writes what is new, which
is addresses of arrays and numbers, and calls the driver once for each kernel.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from ..backend import Driver
from ..dtypes import Dtype
from ..plan import align_up
from .marks import NO_MARKS, Marks, in_turn, make_all

Head = tuple[int, ...]  # a kernel as the driver names it, grid, block, bytes of shared memory
WORD = np.dtype(np.uint64)
_ALIGNMENT = 16  # of what is no word


class PackedStep(NamedTuple):
    """A launch, and where in the row of values its arguments are."""

    head: Head
    places: tuple[int, ...]


class _Block(NamedTuple):
    """A row of values, and the launches with the addresses of their arguments behind it."""

    memory: memoryview
    launches: tuple[tuple[Callable[..., object], int], ...]  # of the driver's, behind each head
    known: list[Any]  # what a call has made, and written
    last: list[Any]  # a stream, and the launches on it

    def on(self, stream: int) -> Sequence[Callable[[], object]]:
        """The launches on another stream than the last."""
        found = [partial(launch, stream, arguments, 0) for launch, arguments in self.launches]
        self.last[:] = stream, found
        return found


class Packed:
    """Launches over one row of values: words, then constants, then what each call makes."""

    def __init__(
        self,
        driver: Driver,
        steps: Sequence[PackedStep],
        n_words: int,
        constants: Sequence[Any],
        made: Sequence[Dtype | None],
    ) -> None:
        self._driver = driver
        self._steps, self._constants = steps, constants
        self._offsets = [WORD.itemsize * i for i in range(n_words)]
        self._end = align_up(WORD.itemsize * n_words, _ALIGNMENT)
        self._fixed = [self._span(getattr(value, "nbytes", 0)) for value in constants]
        self._new = [self._span(0 if dtype is None else dtype.itemsize) for dtype in made]
        self._write = struct.Struct(f"={n_words}Q").pack_into
        self._free: list[_Block] = []

    def run(
        self,
        words: Sequence[int],
        made: Sequence[Any],
        stream: int,
        marks: Marks = NO_MARKS,
    ) -> None:
        """Queue all launches, or none: no handler of a signal comes between two.

        A block is one call's until its last launch: other threads, and calls that come between two
        launches, take others.
        """
        try:
            block = self._free.pop()
        except IndexError:
            block = self._block()
        memory, launches, known, last = block
        self._write(memory, 0, *words)
        if made and not all(map(is_, made, known)):
            for i, value in enumerate(made):
                if value is not known[i]:
                    span = self._new[i]
                    if span.start != span.stop:  # else it is no kernel's
                        memory[span] = value if type(value) is bytes else value.tobytes()
                    known[i] = value
        try:
            if len(launches) == 1 and marks is NO_MARKS:
                launch, arguments = launches[0]
                launch(stream, arguments, 0)
            else:
                queued = last[1] if last[0] == stream else block.on(stream)
                make_all(queued) if marks is NO_MARKS else in_turn(queued, marks)
        except RuntimeError as error:
            if not self._driver.serves_now(error):
                raise
            in_turn(block.on(stream), marks)
        self._free.append(block)

    def _span(self, nbytes: int) -> slice:
        """Room for the next value."""
        start = self._end
        self._offsets.append(start)
        self._end += align_up(nbytes, _ALIGNMENT)
        return slice(start, start + nbytes)

    def _block(self) -> _Block:
        """Memory with the constants, and with the addresses of all arguments."""
        n_arguments = sum(len(step.places) for step in self._steps)
        store = np.zeros(self._end + WORD.itemsize * n_arguments, np.uint8)
        memory, start = memoryview(store), store.ctypes.data
        for span, value in zip(self._fixed, self._constants, strict=True):
            if span.start != span.stop:
                memory[span] = value.tobytes()
        addresses, launches, at = store[self._end :].view(WORD), [], 0
        for head, places in self._steps:
            addresses[at : at + len(places)] = [start + self._offsets[place] for place in places]
            launch = partial(self._driver.launch, *head)
            launches.append((launch, start + self._end + WORD.itemsize * at))
            at += len(places)
        return _Block(memory, tuple(launches), [None] * len(self._new), [None, ()])
