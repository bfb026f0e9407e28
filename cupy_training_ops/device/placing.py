# SPDX-License-Identifier: MIT
"""Steps made ready: kernels compiled, each argument checked and placed in one row of values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from ..backend import Backend, Kernel
from ..declare.declaration import Declaration
from ..declare.schema import Changing, Spec
from ..dtypes import Dtype
from ..errors import CompileError
from ..plan import SHARED_NBYTES, Launch, LaunchError, Pointers, Scratch, Step, Work
from .arguments import (
    Address,
    Late,
    Make,
    cast,
    check_pointer,
    checked,
    either,
    either_at,
    either_bytes,
    either_layout,
    is_either,
    pointers,
    scalar_type,
)
from .compiler import compile_ahead, kernel
from .late_arguments import LateArgument
from .source import Parameter, Source, load

_Section = list[Any]  # one of the lists below


class Table(NamedTuple):
    """A struct that holds addresses."""

    dtype: Dtype
    fill: Address


@dataclass
class Arguments:
    """Where the arguments of all steps come from, each a section of one row of values."""

    scratch: list[Scratch] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
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


Place = int | tuple[_Section, int]  # of an array, or in a section
Run = tuple[Kernel, tuple[int, ...], tuple[int, ...], int]  # with grid, block, shared memory
Ready = tuple[Run, list[Place], Step]


class Builder:
    """Makes each kind of step ready; collects where the arguments of all come from."""

    def __init__(
        self, declared: Declaration, source: Callable[[], Source], backend: Backend, device: int
    ) -> None:
        self._declared = declared
        self._source = source
        self._backend = backend
        self._device = device
        self.arguments = Arguments()
        self._shared: dict[tuple[int, Dtype], Place] = {}  # what several launches take alike

    def compile_ahead(self, steps: Sequence[Step]) -> None:
        """Compile what several steps need at the same time."""
        launches = [step for step in steps if isinstance(step, Launch)]
        if len(launches) > 1:
            wanted = ((self._source_of(step), step.slots) for step in launches)
            compile_ahead(self._backend, wanted, self._device)

    def _source_of(self, step: Launch) -> Source:
        return load(step.family) if step.family else self._source()

    def launch(self, step: Launch) -> Ready:
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

    def work(self, step: Work) -> Ready:
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

    def _place(self, step: Launch, parameter: Parameter, arg: object) -> Place:
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
            return add(arguments.tables, Table(value.dtype, pointers(value)))
        return add(arguments.constants, value)

    def _either_place(self, layout: Dtype, arg: object) -> Place:
        """A number or an array: the struct that lets a kernel read it from either."""
        add, arguments = self.arguments.add, self.arguments
        if isinstance(arg, Spec):
            return add(arguments.tables, Table(layout, either_at(layout, arg)))
        if isinstance(arg, Changing):
            key = id(arg), layout
            if key not in self._shared:
                # The driver takes it as bytes, which are made sooner.
                is_packed = self._backend.driver is not None
                make: Make = either_bytes(layout) if is_packed else partial(either, layout)
                late = self._late("float64 or an integer of 64 bits", arg, make)
                self._shared[key] = add(arguments.late, LateArgument(layout, arg, late))
            return self._shared[key]
        return add(arguments.constants, either(layout, arg))

    def _late(self, holder: str, changing: Changing, make: Make) -> Late:
        """A number that each call gives, as the kernel takes it; `holder` has it there."""
        name = self._declared.inputs[changing.place].name
        return checked(self._declared.name, name, holder, make, changing)

    def _work_place(self, arg: object) -> Place:
        if isinstance(arg, Spec):
            return arg.place
        if isinstance(arg, Scratch):
            return self.arguments.add(self.arguments.scratch, arg)
        if isinstance(arg, Pointers):
            return self.arguments.add(self.arguments.tables, Table(arg.dtype, pointers(arg)))
        if isinstance(arg, Changing):
            return self.arguments.add(self.arguments.late, LateArgument(None, arg, arg.of))
        return self.arguments.add(self.arguments.constants, arg)


READY: Mapping[type, Callable[[Builder, Any], Ready]] = {
    Launch: Builder.launch,
    Work: Builder.work,
}
