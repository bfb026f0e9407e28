# SPDX-License-Identifier: MIT
"""A plan made ready: kernels compiled, every argument checked against what takes it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..backend import Array, Backend, Kernel
from ..declare.declaration import Declaration
from ..plan import Launch, Plan, Step
from .arguments import Addresses, getter
from .late_arguments import Values, renewed
from .marks import NO_MARKS, make_all, own_marks, waiting
from .packed import WORD, Packed, PackedStep
from .placing import READY, Builder, Place
from .source import Source
from .workspace import Store

_log: list[Step] | None = None


@contextlib.contextmanager
def launch_log() -> Iterator[list[Step]]:
    """Record every step made inside the context, to prove which kernel ran."""
    global _log
    before, _log = _log, []
    try:
        yield _log
    finally:
        _log = before


_Piece = tuple[Kernel, Callable[[Sequence[object]], tuple[object, ...]]]  # of work


class ReadyPlan:
    """The steps of a plan on one device.

    `tables` and `values` are made first, so that nothing is queued where one of them is refused.
    `taken` are the places of arrays that are no part of a table.
    """

    def __init__(
        self,
        declared: Declaration,
        source: Callable[[], Source],
        backend: Backend,
        device: int,
        plan: Plan,
        n_arrays: int,
    ) -> None:
        self.workspace_nbytes = plan.workspace_nbytes
        self.scratch_nbytes, self.zeros_nbytes = plan.scratch_nbytes, plan.zeros_nbytes
        self._backend, self._device = backend, device
        builder = Builder(declared, source, backend, device)
        with backend.on(device):
            builder.compile_ahead(plan.steps)
            ready = [READY[type(step)](builder, step) for step in plan.steps]
        self._arguments = builder.arguments
        self.taken = frozenset(p for _, places, _ in ready for p in places if isinstance(p, int))
        self.has_tables = bool(self._arguments.tables)
        in_row = sorted(self.taken)  # others are in tables, on the host, or no kernel's
        self._pick = None if len(in_row) == n_arrays else getter(in_row)
        starts = self._arguments.starts(len(in_row))
        self._constants = tuple(self._arguments.constants)
        self._pieces = tuple(self._arguments.scratch)
        start = plan.scratch_start  # in a caller's workspace, of what may hold anything
        self._offsets = [p.offset + (0 if p.zeros else start) for p in self._pieces]
        self._known: tuple[Array | None, Array | None, list[object]] = (None, None, [])
        at = {place: i for i, place in enumerate(in_row)}
        rows = [_indices(places, at, starts) for _, places, _ in ready]
        self._steps = [
            (*run, getter(row), step) for (run, _, step), row in zip(ready, rows, strict=True)
        ]
        self._queued = self._as_packed(len(in_row), rows)
        alone = self._queued[0] if self._queued and len(self._queued) == 1 else None
        self._packed = alone if isinstance(alone, Packed) else None
        queued = self._queued
        self.takes_objects = queued is None or any(type(each) is not Packed for each in queued)

    def _as_packed(
        self, n_taken: int, rows: Sequence[tuple[int, ...]]
    ) -> list[Packed | _Piece] | None:
        """The same steps as the driver takes them: kernels that follow each other together.

        None where kernels are called with objects.
        """
        driver, found = self._backend.driver, self._arguments
        if driver is None:
            return None
        n_words = n_taken + len(found.scratch)
        made = [item.dtype for section in (found.tables, found.late) for item in section]
        types: list[Any] = [WORD] * n_words
        types += [getattr(value, "dtype", None) for value in found.constants] + made
        queued: list[Packed | _Piece] = []
        pairs = zip(self._steps, rows, strict=True)
        for is_kernel, some in itertools.groupby(
            pairs, lambda pair: isinstance(pair[0][5], Launch)
        ):
            if not is_kernel:
                queued += [(function, pick) for (function, _, _, _, pick, _), _ in some]
                continue
            steps = [
                PackedStep(driver.head(step[0], *step[1:4], [types[i] for i in row]), row)
                for step, row in some
            ]
            queued.append(Packed(driver, steps, n_words, self._constants, made))
        return queued

    def tables_at(self, addresses: Sequence[int] | Addresses) -> list[object]:
        """The structs that hold addresses, of arrays that are at these."""
        return [table.fill(addresses) for table in self._arguments.tables]

    def values(self, changing: Values) -> list[object]:
        """The arguments that follow from the values that change, cast and checked."""
        return [late.of(changing) for late in self._arguments.late]

    def values_but(self, known: list[object], place: int) -> Callable[[object], list[object]]:
        """The same from what is at one place, where the others are as in `known`."""
        return renewed(self._arguments.late, known, place)

    def run(
        self,
        objects: Sequence[Array | None],
        addresses: Sequence[int],
        scratch: Sequence[object],
        tables: Sequence[object],
        values: Sequence[object],
    ) -> None:
        """Queue all steps on the current device and stream.

        objects: the call's arrays, results behind the others, where it `takes_objects`; addresses:
        theirs. scratch, tables, values: as the methods of these names give them.
        """
        pick = self._pick
        if self._queued is None:
            self._call((*(objects if pick is None else pick(objects)), *scratch), tables, values)
            return
        words = (*(addresses if pick is None else pick(addresses)), *scratch)
        stream = self._backend.stream_address(self._device)
        if self._packed is not None and _log is None:
            self._packed.run(
                words, (*tables, *values), stream, own_marks() if waiting else NO_MARKS
            )
        else:
            given = objects if pick is None or not objects else pick(objects)
            self._queue(given, words, (*tables, *values), stream)

    def _call(
        self, row: Sequence[object], tables: Sequence[object], values: Sequence[object]
    ) -> None:
        """Call kernels with objects."""
        row = (*row, *self._constants, *tables, *values)
        marks = own_marks()
        make_all(marks.first)
        for function, grid, block, shared_nbytes, pick, step in self._steps:
            if _log is not None:
                _log.append(step)
            function(grid, block, pick(row), shared_nbytes)
        make_all(marks.last)

    def _queue(
        self,
        arrays: Sequence[Array | None],
        words: Sequence[Any],
        made: Sequence[object],
        stream: int,
    ) -> None:
        """Queue the steps as the driver takes them."""
        assert self._queued is not None
        if _log is not None:
            _log.extend(step for *_, step in self._steps)
        marks = own_marks()
        if self._packed is not None:
            self._packed.run(words, made, stream, marks)
            return
        make_all(marks.first)
        for some in self._queued:
            if isinstance(some, Packed):
                some.run(words, made, stream)
            else:
                work, pick = some
                work((), (), pick((*arrays, *words[len(arrays) :], *self._constants, *made)), 0)
        make_all(marks.last)

    @property
    def takes_addresses(self) -> bool:
        """Whether all steps are kernels that need addresses alone: `run_at` queues them."""
        return self.takes_numbers and not self._arguments.late

    @property
    def takes_numbers(self) -> bool:
        """Whether they need no more than addresses and numbers, which `run_at` is given, too."""
        return not self.takes_objects and not self.has_tables

    def queue(self, words: Sequence[int], made: Sequence[object], stream: int) -> None:
        """The same where it `takes_numbers`: addresses of arrays and scratch, and numbers."""
        if _log is not None or self._packed is None:
            self._queue((), words, made, stream)
        else:
            self._packed.run(words, made, stream)

    @property
    def only_step(self) -> Step | None:
        """The step, if there is one alone."""
        return self._steps[0][5] if len(self._steps) == 1 else None

    @property
    def is_one_launch(self) -> bool:
        """Whether nothing comes between its steps: no other thread, and no Ctrl-C."""
        return len(self._steps) == 1

    def run_at(
        self,
        addresses: Sequence[int],
        stream: int,
        workspace: int = 0,
        *,
        is_clear: bool = False,
        values: Sequence[object] = (),
    ) -> None:
        """Queue such steps over arrays at these addresses, on a stream of the current device.

        stream: its address, whatever CuPy's current one is. workspace: of scratch memory, if any;
        is_clear: its zeros are there. values: what `values` makes, for numbers that change.
        """
        if self.zeros_nbytes and not is_clear:
            self._backend.clear_at(workspace, self.zeros_nbytes, stream)
        if self._offsets:
            addresses = [*addresses, *[workspace + nbytes for nbytes in self._offsets]]
        self.queue(addresses, values, stream)

    def scratch(self, store: Store) -> list[object]:
        """Pointers into scratch memory with a buffer for each kind; most calls have the same."""
        plain, zeros = store.plain, store.zeros
        known = self._known  # once: another thread may put its own there
        if known[0] is not plain or known[1] is not zeros:
            offset = self._backend.offset
            found = [offset(zeros if p.zeros else plain, p.offset) for p in self._pieces]
            known = self._known = plain, zeros, found
        return known[2]

    def scratch_in(self, workspace: Array) -> list[object]:
        """Pointers into a caller's workspace, which begins with the zeros: they are queued here."""
        if self.zeros_nbytes:
            self._backend.fill(workspace, self.zeros_nbytes, 0)
        return [self._backend.offset(workspace, nbytes) for nbytes in self._offsets]


def _indices(
    places: Sequence[Place], at: Mapping[int, int], starts: Mapping[int, int]
) -> tuple[int, ...]:
    """Where one step's arguments are in the row of all values."""
    return tuple(at[p] if isinstance(p, int) else starts[id(p[0])] + p[1] for p in places)
