# SPDX-License-Identifier: MIT
"""A plan made ready: kernels compiled, every argument checked against what takes it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from ..backend import Array, Backend, Kernel
from ..declare.declaration import Declaration
from ..declare.schema import Changing, Spec
from ..dtypes import Dtype
from ..errors import CompileError
from ..plan import SHARED_NBYTES, Launch, LaunchError, Plan, Pointers, Scratch, Step, Work
from .arguments import (
    Address,
    Addresses,
    Make,
    cast,
    check_pointer,
    checked,
    either,
    either_at,
    either_layout,
    getter,
    is_either,
    pointers,
    scalar_type,
)
from .compiler import compile_ahead, kernel
from .late_arguments import Late, LateArgument, Values, renewed
from .packed import WORD, Packed, PackedStep
from .source import Parameter, Source, load
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


_Section = list[Any]  # one of the lists below


class _Table(NamedTuple):
    """A struct that holds addresses."""

    dtype: Dtype
    fill: Address


@dataclass
class _Arguments:
    """Where the arguments of all steps come from, each a section of one row of values."""

    scratch: list[Scratch] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    tables: list[_Table] = field(default_factory=list)
    late: list[LateArgument] = field(default_factory=list)

    def add(self, section: _Section, item: object) -> tuple[_Section, int]:
        """Append to a section; the section and the place in it."""
        section.append(item)
        return section, len(section) - 1

    def starts(self, n_taken: int) -> dict[int, int]:
        """Where each section begins behind the arrays, by the section's identity."""
        sections: tuple[_Section, ...] = (self.scratch, self.constants, self.tables, self.late)
        ends = itertools.accumulate(map(len, sections), initial=n_taken)
        return {id(section): start for section, start in zip(sections, ends, strict=False)}


_Place = int | tuple[_Section, int]  # of an array, or in a section
_Run = tuple[Kernel, tuple[int, ...], tuple[int, ...], int]  # with grid, block, shared memory
_Piece = tuple[Kernel, Callable[[Sequence[object]], tuple[object, ...]]]  # of work
_Ready = tuple[_Run, list[_Place], Step]


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
        builder = _Builder(declared, source, backend, device)
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

    def tables(self, arrays: Sequence[Array | None]) -> list[object]:
        """The structs that hold addresses of these arrays."""
        return self.tables_at(self._backend.pointers(arrays)) if self.has_tables else []

    def tables_at(self, addresses: Sequence[int] | Addresses) -> list[object]:
        """The same for arrays at these addresses."""
        return [table.fill(addresses) for table in self._arguments.tables]

    def values(self, changing: Values) -> list[object]:
        """The arguments that follow from the values that change, cast and checked."""
        return [late.of(changing) for late in self._arguments.late]

    def values_but(self, known: list[object], place: int) -> Callable[[object], list[object]]:
        """The same from what is at one place, where the others are as in `known`."""
        return renewed(self._arguments.late, known, place)

    def run(
        self,
        arrays: Sequence[Array | None],
        scratch: Sequence[object],
        tables: Sequence[object],
        values: Sequence[object],
    ) -> None:
        """Queue all steps on the current device and stream; `scratch` is what one below gives."""
        given = arrays if self._pick is None else self._pick(arrays)
        if self._queued is not None:
            words = (*self._backend.pointers(given), *scratch)
            stream = self._backend.stream_address(self._device)
            self._queue(given, words, (*tables, *values), stream)
            return
        row = (*given, *scratch, *self._constants, *tables, *values)
        for function, grid, block, shared_nbytes, pick, step in self._steps:
            if _log is not None:
                _log.append(step)
            function(grid, block, pick(row), shared_nbytes)

    def run_over(self, addresses: Sequence[int], scratch: Sequence[object]) -> None:
        """The same where it `takes_addresses`: those of all arrays."""
        given = addresses if self._pick is None else self._pick(addresses)
        self._queue((), (*given, *scratch), (), self._backend.stream_address(self._device))

    def _queue(
        self,
        arrays: Sequence[Array | None],
        words: Sequence[Any],
        made: Sequence[object],
        stream: int,
    ) -> None:
        """The steps as the driver takes them."""
        assert self._queued is not None
        if _log is not None:
            _log.extend(step for *_, step in self._steps)
        for some in self._queued:
            if isinstance(some, Packed):
                some.run(words, made, stream)
            else:
                work, pick = some
                row = (*arrays, *words[len(arrays) :], *self._constants, *made)
                work((), (), pick(row), 0)

    @property
    def takes_addresses(self) -> bool:
        """Whether all steps are kernels that need addresses alone: `run_at` queues them."""
        return self.takes_numbers and not self._arguments.late

    @property
    def takes_numbers(self) -> bool:
        """Whether they need no more than addresses and numbers, which `run_at` is given, too."""
        are_kernels = self._queued is not None and all(type(q) is Packed for q in self._queued)
        return are_kernels and not self.has_tables

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


class _Builder:
    """Makes each kind of step ready; collects where the arguments of all come from."""

    def __init__(
        self, declared: Declaration, source: Callable[[], Source], backend: Backend, device: int
    ) -> None:
        self._declared = declared
        self._source = source
        self._backend = backend
        self._device = device
        self.arguments = _Arguments()
        self._shared: dict[tuple[int, Dtype], _Place] = {}  # what several launches take alike

    def compile_ahead(self, steps: Sequence[Step]) -> None:
        """Compile what several steps need at the same time."""
        launches = [step for step in steps if isinstance(step, Launch)]
        if len(launches) > 1:
            wanted = ((self._source_of(step), step.slots) for step in launches)
            compile_ahead(self._backend, wanted, self._device)

    def _source_of(self, step: Launch) -> Source:
        return load(step.family) if step.family else self._source()

    def launch(self, step: Launch) -> _Ready:
        """A kernel with its arguments placed."""
        source = self._source_of(step)
        shared_nbytes = self._shared_nbytes(step)
        function = kernel(
            self._backend, source, step.slots, step.symbol, self._device, shared_nbytes
        )
        parameters = source.kernels[step.symbol]
        if len(parameters) != len(step.args):
            raise CompileError(
                f"{step.symbol}: takes {len(parameters)} arguments, the plan gives {len(step.args)}"
            )
        pairs = zip(parameters, step.args, strict=True)
        places = [self._place(step, parameter, arg) for parameter, arg in pairs]
        return (function, step.config.grid, step.config.block, shared_nbytes), places, step

    def work(self, step: Work) -> _Ready:
        """The backend's piece of work, called as a kernel is."""
        work = self._backend.work(step.name)
        places = [self._work_place(arg) for arg in step.args]
        return (lambda _grid, _block, args, _shared: work(*args), (), (), 0), places, step

    def _shared_nbytes(self, step: Launch) -> int:
        """Dynamic shared memory, which the device has."""
        wanted = step.config.shared_nbytes
        if wanted > SHARED_NBYTES:
            most = self._backend.device(self._device).max_shared_nbytes
            if wanted > most:
                raise LaunchError(f"{wanted} bytes of shared memory a block, at most {most}")
        return wanted

    def _place(self, step: Launch, parameter: Parameter, arg: object) -> _Place:
        """Where an argument of a launch comes from."""
        add, arguments = self.arguments.add, self.arguments
        if is_either(parameter):
            return self._either_place(either_layout(parameter), arg)
        if isinstance(arg, Spec):
            check_pointer(step, parameter, arg.dtype)
            return arg.place
        if isinstance(arg, Changing):
            make, dtype = partial(cast, step, parameter), arg.struct
            dtype = scalar_type(step, parameter) if dtype is None else dtype
            return add(
                arguments.late, LateArgument(dtype, arg, self._late(parameter.c_type, arg, make))
            )
        value = cast(step, parameter, arg)
        if isinstance(value, Scratch):
            return add(arguments.scratch, value)
        if isinstance(value, Pointers):
            return add(arguments.tables, _Table(value.dtype, pointers(value)))
        return add(arguments.constants, value)

    def _either_place(self, layout: Dtype, arg: object) -> _Place:
        """A number or an array: the struct that lets a kernel read it from either."""
        add, arguments = self.arguments.add, self.arguments
        if isinstance(arg, Spec):
            return add(arguments.tables, _Table(layout, either_at(layout, arg)))
        if isinstance(arg, Changing):
            key = id(arg), layout
            if key not in self._shared:
                late = self._late("float64 or an integer of 64 bits", arg, partial(either, layout))
                self._shared[key] = add(arguments.late, LateArgument(layout, arg, late))
            return self._shared[key]
        return add(arguments.constants, either(layout, arg))

    def _late(self, holder: str, changing: Changing, make: Make) -> Late:
        """A number that each call gives, as the kernel takes it; `holder` has it there."""
        name = self._declared.inputs[changing.place].name
        check = partial(checked, self._declared.name, name, holder, make)
        return lambda values: check(changing, values)

    def _work_place(self, arg: object) -> _Place:
        if isinstance(arg, Spec):
            return arg.place
        if isinstance(arg, Scratch):
            return self.arguments.add(self.arguments.scratch, arg)
        if isinstance(arg, Pointers):
            return self.arguments.add(self.arguments.tables, _Table(arg.dtype, pointers(arg)))
        if isinstance(arg, Changing):
            return self.arguments.add(self.arguments.late, LateArgument(None, arg, arg.of))
        return self.arguments.add(self.arguments.constants, arg)


READY: Mapping[type, Callable[[_Builder, Any], _Ready]] = {
    Launch: _Builder.launch,
    Work: _Builder.work,
}


def _indices(
    places: Sequence[_Place], at: Mapping[int, int], starts: Mapping[int, int]
) -> tuple[int, ...]:
    """Where one step's arguments are in the row of all values."""
    return tuple(at[p] if isinstance(p, int) else starts[id(p[0])] + p[1] for p in places)
