# SPDX-License-Identifier: MIT
"""ReadyPlan: a plan with compiled kernels and checked arguments, whose steps a call queues.

The driver takes the addresses of a launch's arguments. These are fixed in a block of memory, so
that a call only writes new values there, addresses of arrays and numbers, and launches.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import call, is_
from typing import Any, NamedTuple

import numpy as np

from ..backend import Array, Backend, Driver, Kernel
from ..declare.declaration import Declaration
from ..declare.schema import Changing, Spec
from ..dtypes import Dtype
from ..errors import CompileError
from ..plan import SHARED_NBYTES, Launch, LaunchError, Plan, Pointers, Scratch, Step, Work, align_up
from . import recording
from .arguments import (
    Address,
    Addresses,
    DynamicArgument,
    Make,
    MakeDynamic,
    Values,
    cast,
    check_number,
    check_pointer,
    either,
    either_at,
    either_bytes,
    either_layout,
    getter,
    is_either,
    pointers,
    renew,
    scalar_type,
)
from .compiler import compile_ahead, kernel
from .marks import NO_MARKS, Marks, in_turn, make_all, own_marks, waiting
from .source import Parameter, Source, load
from .workspace import Store

_log: list[Step] | None = None
HAS_RANGES = os.environ.get("CTO_NVTX") == "1"  # read once: calls without ranges cost no more


@contextlib.contextmanager
def launch_log() -> Iterator[list[Step]]:
    """Append each Launch and Work queued inside to the list, to prove which kernel ran."""
    global _log
    before, _log = _log, []
    try:
        yield _log
    finally:
        _log = before


_Piece = tuple[Kernel, Callable[[Sequence[object]], tuple[object, ...]]]  # a `Work`, its pick


class ReadyPlan:
    """The steps of a plan on one device, their kernels compiled.

    `direct` are indices of the arrays whose addresses are kernel arguments themselves; others are
    in tables: structs of addresses that are passed by value. Tables and values (arguments that
    depend on changing numbers) are made before `run`, so that nothing is queued if one is refused.
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
        """Compile the plan's kernels, and check its arguments.

        declared, source: the operator's declaration, and what loads its CUDA source. backend,
        device: by which it runs, and the device's number. n_arrays: of a call, inputs and results;
        `Spec.place` is an index among them.
        """
        self.workspace_nbytes = plan.workspace_nbytes
        self.scratch_nbytes, self.zeros_nbytes = plan.scratch_nbytes, plan.zeros_nbytes
        self._backend, self._device = backend, device
        builder = Builder(declared, source, backend, device)
        with backend.on(device):
            builder.compile_ahead(plan.steps)
            ready = [builder.make_ready(step) for step in plan.steps]
        self._arguments = builder.arguments
        self.direct = frozenset(p for _, places, _ in ready for p in places if isinstance(p, int))
        self.has_tables = bool(self._arguments.tables)
        in_row = sorted(self.direct)  # others are in tables, on the host, or unused
        self._pick = None if len(in_row) == n_arrays else getter(in_row)  # direct ones of all
        starts = self._arguments.starts(len(in_row))  # where sections of other arguments begin
        self._constants = tuple(self._arguments.constants)
        self._pieces = tuple(self._arguments.scratch)
        start = plan.scratch_start  # after the zeros in a caller's workspace
        self._offsets = [p.offset + (0 if p.zeros else start) for p in self._pieces]
        # The last (plain bytes, zeros) of a store, and pointers into them; see `scratch`.
        self._known: tuple[Array | None, Array | None, list[object]] = (None, None, [])
        at = {place: i for i, place in enumerate(in_row)}
        rows = [_indices(places, at, starts) for _, places, _ in ready]
        # Of each step: kernel, grid, block, bytes of shared memory, a function that picks its
        # arguments from the row (direct arrays, scratch, constants, tables, values), the step.
        self._steps = [
            (*run, getter(row), step) for (run, _, step), row in zip(ready, rows, strict=True)
        ]
        self._queued = self._as_packed(len(in_row), rows)
        # The only item if all steps are kernels.
        alone = self._queued[0] if self._queued and len(self._queued) == 1 else None
        self._packed = alone if isinstance(alone, Packed) else None
        queued = self._queued
        # True if a step needs array objects, not only addresses.
        self.takes_objects = queued is None or any(type(each) is not Packed for each in queued)

    def _as_packed(
        self, n_direct: int, rows: Sequence[tuple[int, ...]]
    ) -> list[Packed | _Piece] | None:
        """Return the steps with consecutive kernels as one `Packed`; None without a driver.

        n_direct: arrays whose addresses are arguments. rows: for each step the indices of its
        arguments in the row (direct arrays, scratch memory, constants, tables, values).
        """
        driver, arguments = self._backend.driver, self._arguments
        if driver is None:
            return None
        n_words = n_direct + len(arguments.scratch)
        new = [item.dtype for section in (arguments.tables, arguments.dynamic) for item in section]
        types: list[Any] = [WORD] * n_words  # dtype of each item of the row; None: only for `Work`
        types += [getattr(value, "dtype", None) for value in arguments.constants] + new
        queued: list[Packed | _Piece] = []
        pairs = zip(self._steps, rows, strict=True)
        for is_kernel, group in itertools.groupby(
            pairs, lambda pair: isinstance(pair[0][5], Launch)
        ):
            if not is_kernel:
                queued += [(function, pick) for (function, _, _, _, pick, _), _ in group]
                continue
            steps = [  # step[:4]: kernel, grid, block, bytes of shared memory
                PackedStep(driver.head(step[0], *step[1:4], [types[i] for i in row]), row)
                for step, row in group
            ]
            queued.append(Packed(driver, steps, n_words, self._constants, new))
        return queued

    def tables_at(self, addresses: Sequence[int] | Addresses) -> list[object]:
        """Return the structs of addresses; addresses: of all arrays of a call, then results."""
        return [table.fill(addresses) for table in self._arguments.tables]

    def values(self, changing: Values) -> list[object]:
        """Return all arguments that depend on changing values ({index of input: value}), cast."""
        return [dynamic.of(changing) for dynamic in self._arguments.dynamic]

    def values_but(self, known: list[object], place: int) -> Callable[[object], list[object]]:
        """Return a function from the value of the input with index `place` to the list of all
        arguments that depend on changing values, as `values` returns it.

        known: the list for any value of it; what does not depend on it is copied from there.
        """
        return renew(self._arguments.dynamic, known, place)

    def run(
        self,
        objects: Sequence[Array | None],
        addresses: Sequence[int] | Addresses,
        scratch: Sequence[object],
        tables: Sequence[object],
        values: Sequence[object],
    ) -> None:
        """Queue all steps on the current device and stream.

        objects: the call's arrays, then results, if it `takes_objects`. addresses: of the same.
        scratch, tables, values: results of `scratch`, `tables_at` and `values`.
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
            arrays = objects if pick is None or not objects else pick(objects)
            self._queue_pieces(arrays, words, (*tables, *values), stream)

    def _call(
        self, row: Sequence[object], tables: Sequence[object], values: Sequence[object]
    ) -> None:
        """Call kernels without a driver; row: direct arrays, then pointers into scratch memory.

        tables: structs of addresses. values: arguments that depend on changing numbers.
        """
        recording.leave()
        row = (*row, *self._constants, *tables, *values)
        marks = own_marks()
        make_all(marks.first)
        for function, grid, block, shared_nbytes, pick, step in self._steps:
            if _log is not None:
                _log.append(step)
            function(grid, block, pick(row), shared_nbytes)
        make_all(marks.last)

    def _queue_pieces(
        self,
        arrays: Sequence[Array | None],
        words: Sequence[Any],
        new: Sequence[object],
        stream: int,
    ) -> None:
        """Queue the steps, and call the operator call's marks.

        If all steps are kernels, marks follow the first launch and the last; else they come before
        all and after all. arrays: direct ones, for `Work`. words: their addresses, then those of
        scratch memory. new: tables, then arguments that depend on changing values.
        """
        assert self._queued is not None
        if _log is not None:
            _log.extend(step for *_, step in self._steps)
        marks = own_marks()
        if self._packed is not None:
            self._packed.run(words, new, stream, marks)
            return
        make_all(marks.first)
        for queued in self._queued:
            if isinstance(queued, Packed):
                queued.run(words, new, stream)
            else:
                recording.leave()
                work, pick = queued
                work((), (), pick((*arrays, *words[len(arrays) :], *self._constants, *new)), 0)
        make_all(marks.last)

    @property
    def takes_addresses(self) -> bool:
        """Return True if steps need only addresses of arrays, so that `run_at` needs no values."""
        return self.takes_numbers and not self._arguments.dynamic

    @property
    def takes_numbers(self) -> bool:
        """Return True if steps need only addresses of arrays, and numbers, for `run_at`."""
        return not self.takes_objects and not self.has_tables

    def queue(self, words: Sequence[int], new: Sequence[object], stream: int) -> None:
        """Queue the steps on a stream; only if it `takes_numbers`.

        words: addresses of direct arrays, then of scratch memory. new: arguments from `values`.
        """
        if _log is not None or self._packed is None:
            self._queue_pieces((), words, new, stream)
        else:
            self._packed.run(words, new, stream)

    @property
    def only_step(self) -> Step | None:
        """Return the step if there is only one."""
        return self._steps[0][5] if len(self._steps) == 1 else None

    @property
    def is_one_launch(self) -> bool:
        """Return True if there is one step, so that nothing can come in between."""
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
        """Queue steps over other arrays of the same dtypes and shapes; only if it `takes_numbers`.

        addresses: of the `direct` arrays, in order. stream: address of a stream of the current
        device. workspace: address of `workspace_nbytes` of scratch memory; is_clear: its first
        `zeros_nbytes` are zero. values: from `values`.
        """
        if self.zeros_nbytes and not is_clear:
            self._backend.clear_at(workspace, self.zeros_nbytes, stream)
        if self._offsets:
            addresses = [*addresses, *[workspace + nbytes for nbytes in self._offsets]]
        self.queue(addresses, values, stream)

    def scratch(self, store: Store) -> list[object]:
        """Return a pointer into the store for each piece of scratch memory; caches the last."""
        plain, zeros = store.plain, store.zeros
        known = self._known  # read once: another thread may replace it
        if known[0] is not plain or known[1] is not zeros:
            offset = self._backend.offset
            pointers = [offset(zeros if p.zeros else plain, p.offset) for p in self._pieces]
            known = self._known = plain, zeros, pointers
        return known[2]

    def scratch_in(self, workspace: Array) -> list[object]:
        """Return pointers into a caller's workspace; queues the zeros at its beginning."""
        if self.zeros_nbytes:
            self._backend.fill(workspace, self.zeros_nbytes, 0)
        return [self._backend.offset(workspace, nbytes) for nbytes in self._offsets]


class RangedPlan(ReadyPlan):
    """A plan whose steps are queued within a range of NVTX; `label` is its name in a profile."""

    label = ""

    def run(self, *arguments: Any) -> None:
        """Queue all steps, within the range."""
        self._within(super().run, *arguments)

    def queue(self, words: Sequence[int], new: Sequence[object], stream: int) -> None:
        """Queue the steps by addresses, within the range."""
        self._within(super().queue, words, new, stream)

    def _within(self, queue: Any, *arguments: Any) -> None:
        """Call queue(*arguments) inside a range of NVTX."""
        from cupy.cuda import nvtx

        nvtx.RangePush(self.label)
        try:
            queue(*arguments)
        finally:
            nvtx.RangePop()


def _indices(
    places: Sequence[Place], at: Mapping[int, int], starts: Mapping[int, int]
) -> tuple[int, ...]:
    """Return the indices of a step's arguments in the row (direct arrays, *sections).

    at: for each direct array its index in the row. starts: where each section begins, by its `id`.
    """
    return tuple(at[p] if isinstance(p, int) else starts[id(p[0])] + p[1] for p in places)


_Section = list[Any]  # one of the lists below


class Table(NamedTuple):
    """A struct of addresses: its dtype, and a function to it from the addresses of all arrays."""

    dtype: Dtype
    fill: Address


@dataclass
class Arguments:
    """The arguments of all steps: sections that follow the direct arrays in one row of values."""

    scratch: list[Scratch] = field(default_factory=list)  # pieces of scratch memory
    constants: list[Any] = field(default_factory=list)  # cast to the parameters' types
    tables: list[Table] = field(default_factory=list)  # structs of addresses
    dynamic: list[DynamicArgument] = field(default_factory=list)  # made of changing numbers

    def add(self, section: _Section, item: object) -> tuple[_Section, int]:
        """Append to a section; return it, and the item's index."""
        section.append(item)
        return section, len(section) - 1

    def starts(self, n_direct: int) -> dict[int, int]:
        """Return the index at which each section begins, by the section's `id`."""
        sections: tuple[_Section, ...] = (self.scratch, self.constants, self.tables, self.dynamic)
        ends = itertools.accumulate(map(len, sections), initial=n_direct)
        return {id(section): start for section, start in zip(sections, ends, strict=False)}


Place = int | tuple[_Section, int]  # index of an array, or in a section
Run = tuple[Kernel, tuple[int, ...], tuple[int, ...], int]  # kernel, grid, block, shared bytes
Ready = tuple[Run, list[Place], Step]  # with the place of each argument


class Builder:
    """Compiles steps, checks their arguments and collects these in `arguments`."""

    def __init__(
        self, declared: Declaration, source: Callable[[], Source], backend: Backend, device: int
    ) -> None:
        """declared: of the operator, for messages. source: loads its family's CUDA source. backend,
        device: for which it compiles, and the device's number."""
        self._declared = declared
        self._source = source
        self._backend = backend
        self._device = device
        self.arguments = Arguments()
        self._shared: dict[tuple[int, Dtype], Place] = {}  # arguments that several launches share

    def compile_ahead(self, steps: Sequence[Step]) -> None:
        """Compile the modules of several launches in parallel."""
        launches = [step for step in steps if isinstance(step, Launch)]
        if len(launches) > 1:
            wanted = ((self._source_of(step), step.slots) for step in launches)
            compile_ahead(self._backend, wanted, self._device)

    def _source_of(self, step: Launch) -> Source:
        return load(step.family) if step.family else self._source()

    def make_ready(self, step: Step) -> Ready:
        """Return ((kernel, grid, block, bytes of shared memory), place of each argument, step).

        A place is the index of an array, or (section of `arguments`, index there). A `Work` is
        called as a kernel, with an empty grid and block.
        """
        if isinstance(step, Work):
            work = self._backend.work(step.name)
            places = [self._work_place(arg) for arg in step.args]
            return (lambda _grid, _block, args, _shared: work(*args), (), (), 0), places, step
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

    def _shared_nbytes(self, step: Launch) -> int:
        """Return a launch's dynamic shared memory; refuse more than the device has."""
        wanted = step.config.shared_nbytes
        if wanted > SHARED_NBYTES:
            most = self._backend.device(self._device).max_shared_nbytes
            if wanted > most:
                raise LaunchError(f"{wanted} bytes of shared memory a block, at most {most}")
        return wanted

    def _place(self, step: Launch, parameter: Parameter, arg: object) -> Place:
        """Check `arg` of a launch against the kernel's parameter; return its place: the index of an
        array, or (section of `arguments` to which it is appended, index there)."""
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
                arguments.dynamic,
                DynamicArgument(dtype, arg, self._numbers(parameter.c_type, arg, make)),
            )
        return self._fixed_place(cast(step, parameter, arg))

    def _either_place(self, layout: Dtype, arg: object) -> Place:
        """Return the place of an Either struct, which has `arg`: a number, or an array's address.

        layout: the struct's dtype. A changing number that several launches read is one argument for
        all of them.
        """
        add, arguments = self.arguments.add, self.arguments
        if isinstance(arg, Spec):
            return add(arguments.tables, Table(layout, either_at(layout, arg)))
        if isinstance(arg, Changing):
            key = id(arg), layout
            if key not in self._shared:
                # The driver takes bytes, which are faster to make.
                is_packed = self._backend.driver is not None
                make: Make = either_bytes(layout) if is_packed else partial(either, layout)
                dynamic = self._numbers("float64 or an integer of 64 bits", arg, make)
                self._shared[key] = add(arguments.dynamic, DynamicArgument(layout, arg, dynamic))
            return self._shared[key]
        return add(arguments.constants, either(layout, arg))

    def _numbers(self, holder: str, changing: Changing, make: Make) -> MakeDynamic:
        """Return a function from all changing numbers to an argument of C type `holder`."""
        name = self._declared.inputs[changing.place].name
        return check_number(self._declared.name, name, holder, make, changing)

    def _work_place(self, arg: object) -> Place:
        """Return the place of an argument of `Work`, which may be any object."""
        if isinstance(arg, Spec):
            return arg.place
        if isinstance(arg, Changing):
            return self.arguments.add(self.arguments.dynamic, DynamicArgument(None, arg, arg.of))
        return self._fixed_place(arg)

    def _fixed_place(self, arg: object) -> Place:
        """Return the place of scratch memory, a struct of addresses, or a constant."""
        if isinstance(arg, Scratch):
            return self.arguments.add(self.arguments.scratch, arg)
        if isinstance(arg, Pointers):
            return self.arguments.add(self.arguments.tables, Table(arg.dtype, pointers(arg)))
        return self.arguments.add(self.arguments.constants, arg)


Head = tuple[int, ...]  # kernel handle, grid, block, bytes of shared memory
WORD = np.dtype(np.uint64)
_ALIGNMENT = 16  # of values that are no words


class PackedStep(NamedTuple):
    """A launch, and the indices of its arguments in the row (words, constants, new values)."""

    head: Head
    places: tuple[int, ...]


class _Block(NamedTuple):
    """Memory with a row of values and their addresses, and the launches that read these."""

    memory: memoryview
    # The driver's function, and the address of the launch's row of argument addresses.
    launches: tuple[tuple[Callable[..., object], int], ...]
    known: list[Any]  # new values of the last call, which are written already
    last: list[Any]  # a stream, and the launches on it

    def on(self, stream: int) -> Sequence[Callable[[], object]]:
        """Return functions that launch on the stream at an address, cached for the last one."""
        queued = [partial(launch, stream, arguments, 0) for launch, arguments in self.launches]
        self.last[:] = stream, queued
        return queued


class Packed:
    """Launches whose arguments are in one block of memory, filled at each call.

        block       words | constants | new values | addresses of each launch's arguments
        words       addresses of arrays and scratch memory
        new values  tables of addresses, and arguments that depend on changing numbers

    The driver's launch reads the arguments at those addresses.
    """

    def __init__(
        self,
        driver: Driver,
        steps: Sequence[PackedStep],
        n_words: int,
        constants: Sequence[Any],
        new: Sequence[Dtype | None],
    ) -> None:
        """Lay out a block: n_words words of 8 bytes, constants, new values of these dtypes (None
        takes no room). In `steps` an argument is an index in (words, constants, new values)."""
        self._driver = driver
        self._steps, self._constants = steps, constants
        self._offsets = [WORD.itemsize * i for i in range(n_words)]  # in bytes, of every value
        self._end = align_up(WORD.itemsize * n_words, _ALIGNMENT)
        self._fixed = [self._span(getattr(value, "nbytes", 0)) for value in constants]
        self._new = [self._span(0 if dtype is None else dtype.itemsize) for dtype in new]
        self._write = struct.Struct(f"={n_words}Q").pack_into
        self._free: list[_Block] = []

    def run(
        self,
        words: Sequence[int],
        new: Sequence[Any],
        stream: int,
        marks: Marks = NO_MARKS,
    ) -> None:
        """Queue all launches, or none: no signal handler runs in between.

        words: addresses of arrays, then of scratch memory. new: structs of addresses, and arguments
        that depend on changing numbers. stream: its address. marks: functions that set flags, after
        the first launch and the last.
        A call takes its block from the free ones until its last launch, so that other threads and
        nested calls use other blocks.
        """
        if recording.active:
            self._note(words, new, stream)
        try:
            block = self._free.pop()
        except IndexError:
            block = self._block()
        memory, launches, known, last = block
        self._write(memory, 0, *words)
        if new and not all(map(is_, new, known)):
            self._renew(block, new)
        try:
            if len(launches) == 1 and marks is NO_MARKS:
                launch, arguments = launches[0]
                launch(stream, arguments, 0)
            else:
                queued = last[1] if last[0] == stream else block.on(stream)
                if marks is NO_MARKS:
                    list(map(call, queued))  # `make_all`, inlined
                else:
                    in_turn(queued, marks)
        except RuntimeError as error:
            if not self._driver.mend(error):
                raise
            in_turn(block.on(stream), marks)
        self._free.append(block)

    def _renew(self, block: _Block, new: Sequence[Any]) -> None:
        """Write those of the new values that are not in the block already, from its last call."""
        memory, _, known, _ = block
        for i, value in enumerate(new):
            if value is not known[i]:
                span = self._new[i]
                if span.start != span.stop:  # else only `Work` uses it
                    memory[span] = value if type(value) is bytes else value.tobytes()
                known[i] = value

    def _note(self, words: Sequence[int], new: Sequence[Any], stream: int) -> None:
        """Add launches, with a block of their own, to this thread's recording.

        words: addresses. new: the other arguments that are not constant. stream: its address.
        """
        current = recording.current()
        if current is not None:
            block = self._block()
            self._write(block.memory, 0, *words)
            self._renew(block, new)
            current.calls += block.on(stream)
            current.memory.append(block.memory)

    def _span(self, nbytes: int) -> slice:
        """Reserve aligned bytes for the next value in every block; return where they are."""
        start = self._end
        self._offsets.append(start)
        self._end += align_up(nbytes, _ALIGNMENT)
        return slice(start, start + nbytes)

    def _block(self) -> _Block:
        """Allocate a block: constants written, words and new values still to be filled in.

        Each launch gets the address of its own row of addresses at the block's end, from which the
        driver reads where the launch's arguments are.
        """
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
