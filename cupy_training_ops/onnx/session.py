# SPDX-License-Identifier: MIT
"""A model that runs on NumPy or CuPy arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import methodcaller, setitem
from types import MappingProxyType, ModuleType
from typing import Any, Generic, NamedTuple, cast

import numpy as np

from ..declare.schema import integer
from ..device.marks import NO_MARKS, Marks, Note, call_with_marks
from ..dtypes import HostArray, dtype_name
from ..errors import ArgumentError, DtypeError, cut, raise_if_from_handler, refuse, shown
from ..summary import Summary
from ..typing import ArrayModule, ArrayT, Policy
from .activations import Activations, with_codes
from .bodies import with_bodies
from .checks import (
    LOSSES,
    Extents,
    Labels,
    check_divisors,
    check_sequences,
    check_types,
    with_gradient_checks,
)
from .control import runner as control_runner
from .graph import EMPTY, Value
from .models import Source, read_model
from .passes import TAKE_TF32, fuse_products, prepare, schedule
from .program import Compiler, Program, coalesce, node_runners
from .runner import each
from .steps import run_step


class Notes(NamedTuple):
    """Callbacks (C functions without arguments) that a run makes together with its writes.

    begun: called before the first write, when the saved states are valid. steps: {a step's index:
    functions called right after its first and after its last write}. replay: the same of the
    launch of a captured run.
    """

    begun: Note | None = None
    steps: Mapping[int, Marks] = MappingProxyType({})
    replay: Marks = NO_MARKS


NO_NOTES = Notes()


class Session(Summary, Generic[ArrayT]):
    """Runs an ONNX graph: `Session(model, xp).run(feeds)`.

    model: a path, the bytes of a file, or an onnx.ModelProto. xp: numpy or cupy. A model that
    cannot be run is refused here, with every node that is the reason. seed: of the random masks;
    the system's without one. activations: the policy of an ActivationStash, which stores what the
    backward part of a training graph reads of the forward part as codes. tf32: multiply matrices
    and convolve float32 by TF32. arrays: names of inputs that stay on the device, though nodes
    could read them as numbers on the host.
    """

    caller = "Session"  # in messages about what is fed
    _activations: Activations | None = None

    def __init__(
        self,
        model: Source,
        xp: ArrayModule[ArrayT] | ModuleType = np,
        *,
        seed: int | None = None,
        activations: Policy | None = None,
        tf32: bool = False,
        arrays: Collection[str] = (),
    ) -> None:
        self.xp = cast(Any, xp)  # which has more than its class of arrays
        graph, self.model, problems = read_model(model)
        if not hasattr(xp, "ndarray"):
            refuse("Session", "xp", "numpy or cupy, the module", shown(xp))
        if any(node.op_type == "Gradient" for node in graph.nodes):
            from .gradients import with_gradients

            graph = with_gradients(graph, problems)
            problems.refuse()
        graph = prepare(with_bodies(graph, problems), problems, _check_seed(seed))
        if tf32:
            graph = graph.with_attributes(TAKE_TF32, allow_tf32=1)
        runners = node_runners(graph, problems, own=control_runner)
        first = graph
        check_types(graph, runners, problems, self.xp is np)
        check_sequences(graph, problems)
        check_divisors(graph, problems)
        problems.refuse()
        graph = schedule(fuse_products(graph))
        if self.xp is np:  # where losses refuse labels out of range themselves
            graph = graph.with_attributes(LOSSES, check=1)
        self.labels = Labels(graph)
        # Nodes that the passes have not changed keep their runners.
        known = {id(first.nodes[i]): runner for i, runner in runners.items()}
        runners = node_runners(graph, problems, known, control_runner)
        if activations is not None:
            self._activations = Activations(activations)
            graph = with_codes(graph)
            own = self._activations.runner
            runners = node_runners(graph, problems, known, lambda n: own(n) or control_runner(n))
        if self.xp is not np:
            runners = self.labels.runners(graph, runners)
        runners = with_gradient_checks(graph, runners)
        self.graph = graph
        self.extents = Extents(graph)
        self._declared = {item.name: item for item in graph.inputs}  # Values by name
        self.program: Program = Compiler(graph, xp, runners, arrays).compile()
        # Slots of fed arrays that runs update, and that are saved before each.
        self._fed_statistics = [self.program.feeds[n][0] for n in self.program.statistics]
        self._written: tuple[Any, ...] = ()  # arrays that each run writes
        self._save_all(self.program.written)
        self.is_begun = False  # True from a run's first write to its end: `put_back` is needed

    def _facts(self) -> dict[str, object]:
        """Return the facts that repr() shows."""
        names = {"inputs": self.inputs, "outputs": self.outputs}
        return {
            **names,
            "nodes": len(self.graph.nodes),
            "xp": getattr(self.xp, "__name__", shown(self.xp)),
        }

    def _save_all(self, written: tuple[Any, ...]) -> None:
        """Allocate a copy of each array that all runs write, to restore it if a run is stopped."""
        self._written = written
        self._saved = [(array, array.copy()) for array in written]
        self._before = self._saved  # and of arrays fed to the last run that it writes

    @property
    def states(self) -> dict[str, ArrayT]:
        """Constants that runs update in place, by name: running statistics, states of random
        numbers."""
        return {name: self.program.values[slot] for name, slot in self.program.states.items()}

    def share(self, other: Session) -> None:
        """Use another session's states (see `states`) in place of one's own of the same names."""
        for name, array in other.states.items():
            slot = self.program.constants.get(name)
            if slot is not None:
                self.program.values[slot] = array
        own = [array for name, array in self.states.items() if name not in other.states]
        self._save_all((*other._written, *own) if self.states else ())

    def own_statistics(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return copies, in one piece of memory, of the running statistics among `arrays`.

        arrays: by name, that the caller feeds in each run; it has to feed the copies instead. They
        are saved before a run like states, by one copy.
        """
        names = sorted(self.program.statistics & arrays.keys())
        if not names:
            return {}
        memory, parts = coalesce(self.xp, [arrays[name] for name in names])
        self._save_all((*self._written, memory))
        rest = self.program.statistics - arrays.keys()
        self._fed_statistics = [self.program.feeds[name][0] for name in rest]
        return dict(zip(names, parts, strict=True))

    def report(self) -> dict[str, Any]:
        """Return bytes of the last run's activations `before` and `after` they became codes.

        `peak`: most of these at a time. `names`: by array, codec, need, before and after.
        """
        if self._activations is None:
            raise ArgumentError("Session: report: there are no activations as codes")
        return self._activations.stash.report()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs that `run` takes."""
        return tuple(self.program.feeds)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs that it gives."""
        return tuple(name for name, _ in self.program.results)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, ArrayT | Any]:
        """Return the graph's outputs by name; feeds: an array, or a list of them, for each input.

        Arrays that the graph updates are updated in place. If the run is stopped, as by Ctrl-C,
        these and the session's states get their values of before.
        """
        if not isinstance(feeds, Mapping):
            names = cut(str(sorted(self.program.feeds)))
            refuse("Session", "feeds", f"a dictionary of {names}", type(feeds).__name__)
        for name, value in feeds.items():
            self.labels.note_range(name, value)
        if self.is_begun:  # and was stopped while it was put back
            self.put_back()
        try:
            begun = Notes(partial(setattr, self, "is_begun", True))
            results = self._run_saving(self.start_values(feeds), begun, self._fed_statistics)
            self.is_begun = False
            return results
        except BaseException:
            if self.is_begun:
                self.put_back()
            raise

    def run_over(self, fixed: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
        """Return run(feeds, notes): like `self.run({**fixed, **feeds})`, but faster (notes: Notes).

        fixed: arrays that are the same in each run. If a run is stopped, states are not put back:
        the caller calls `put_back`.
        """
        template: list[list[Any]] = []  # one list: values by slot, None for feeds that change

        def values_of(feeds: Mapping[str, Any]) -> list[Any]:
            """Return values by slot before the first step; `fixed` is checked the first time."""
            if template:
                values = template[0].copy()
                placed = {name: self.on_place(name, value) for name, value in feeds.items()}
                self.extents.check(placed, self.caller)
                for name, value in placed.items():
                    values[self.program.feeds[name][0]] = value
                return values
            values = self.start_values({**fixed, **feeds})
            own = {self.program.feeds[name][0] for name in fixed}
            changing = {slot for slot, _ in self.program.feeds.values()} - own
            template.append([None if i in changing else v for i, v in enumerate(values)])
            return values

        def run(feeds: Mapping[str, Any], notes: Notes = NO_NOTES) -> dict[str, Any]:
            for name, value in feeds.items():
                self.labels.note_range(name, value)
            return self._run_saving(values_of(feeds), notes, self._fed_statistics)

        return run

    def run_checked(self, feeds: Mapping[str, Any], notes: Notes = NO_NOTES) -> dict[str, Any]:
        """Return outputs by name, of feeds by name whose labels the caller has checked.

        Running statistics that are fed are not saved before.
        """
        return self._run_saving(self.start_values(feeds), notes, ())

    @property
    def feeds_statistics(self) -> bool:
        """True if runs update running statistics that are fed, and not the session's own."""
        return bool(self._fed_statistics)

    def put_back(self) -> None:
        """Give states the values that they had before the last run.

        map() runs in C, so that no signal handler runs between NumPy's assignments.
        """
        arrays, copies = [a for a, _ in self._before], [c for _, c in self._before]
        list(map(setitem, arrays, repeat(...), copies))
        self.is_begun = False

    def _run_saving(self, values: list[Any], notes: Notes, slots: Sequence[int]) -> dict[str, Any]:
        """Save states and run; return results by name.

        values: by slot, before the first step. slots: of fed running statistics, saved as well.
        """
        self.begin(values, notes, slots)
        self._run(values, notes.steps)
        return self.results(values)

    def begin(self, values: list[Any], notes: Notes, slots: Sequence[int] = ()) -> None:
        """Save states, and running statistics that are fed in `slots`; then call `notes.begun`.

        values: by slot, before the first step.
        """
        for array, copy in self._saved:
            copy[...] = array
        fed = [values[slot] for slot in slots]
        fed = [x for x in fed if getattr(x.flags, "writeable", True)]  # others are refused
        self._before = [*self._saved, *[(array, array.copy()) for array in fed]]
        if notes.begun is not None:
            notes.begun()

    def results(self, values: list[Any]) -> dict[str, Any]:
        """Return the outputs by name; values: by slot, after the last step."""
        return {name: self._result(values[k], k) for name, k in self.program.results}

    def _result(self, value: Any, slot: int) -> Any:
        """Return an output, None for an empty optional; a copy if `Program.copied` has its slot."""
        if value is EMPTY:
            return None
        return each(methodcaller("copy"), value) if slot in self.program.copied else value

    def _run(self, values: list[Any], marks: Mapping[int, Marks]) -> None:
        """Run all steps over `values` by slot.

        marks: by a step's index, functions to call right after its first and its last write.
        """
        stash = self._activations.stash if self._activations else contextlib.nullcontext()
        with np.errstate(all="ignore"), stash:
            for place in range(len(self.program.steps)):
                self.run_place(place, values, marks)

    def run_place(self, place: int, values: list[Any], marks: Mapping[int, Marks]) -> None:
        """Run the step of index `place` over `values` by slot.

        marks: by a step's index, functions to call right after its first and its last write.
        """
        step = self.program.steps[place]
        if place in marks:
            call_with_marks(marks[place], self._run_step, step, values)
        else:
            self._run_step(step, values)

    def _run_step(self, step: Any, values: list[Any]) -> None:
        run_step(step, values)

    def start_values(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the values by slot before the first step: constants, and `feeds` after checks."""
        values, known = self.program.values.copy(), self.program.feeds
        missing = sorted(known.keys() - feeds.keys())
        extra = sorted(map(str, feeds.keys() - known.keys()))
        if missing or extra:
            refuse(self.caller, "feeds", cut(str(sorted(known))), _difference(missing, extra))
        placed = {name: self.on_place(name, value) for name, value in feeds.items()}
        self.extents.check(placed, self.caller)
        for name, value in placed.items():
            values[known[name][0]] = value
        return values

    def on_place(self, name: str, value: Any) -> Any:
        """Return a feed as an array on the host or the device, where the graph reads it.

        A sequence is a list of arrays, an optional without a value EMPTY. Refused if it does not
        fit.
        """
        arrays = self.as_fed(name, value)
        return arrays if self.is_on_host(name) else each(self.xp.asarray, arrays)

    def is_on_host(self, name: str) -> bool:
        """Return True if the feed of this name is read on the host."""
        return self.program.feeds[name][1]

    def as_fed(self, name: str, value: Any) -> Any:
        """Return the value fed to input `name` as an array, a list of them or EMPTY, or refuse it.

        An array of the device is copied to the host if the host reads it; one of the host stays.
        """
        item, host = self._declared[name], self.is_on_host(name)
        if item.is_optional and value is None:
            return EMPTY
        if item.is_sequence and isinstance(value, list | tuple):
            arrays: Any = [self._array(name, one, host) for one in value]
        else:
            arrays = self._array(name, value, host)
        self._check(item, arrays)
        return arrays

    def _check(self, item: Value, value: Any) -> None:
        """Refuse a fed array, or list of them, of another type or rank than `item` declares."""
        if item.is_sequence != isinstance(value, list):
            got = "an array" if item.is_sequence else "a sequence"
            refuse(self.caller, cut(item.name), "the other of array and sequence", got)
        for array in value if item.is_sequence else (value,):
            if item.dtype is not None and array.dtype != item.dtype:
                names = dtype_name(item.dtype), dtype_name(array.dtype)
                where = f"{self.caller}: {cut(item.name)}"
                raise DtypeError(f"{where}: expected {names[0]}, got {names[1]}")
            if item.shape is not None and len(item.shape) != array.ndim:
                expected = f"{len(item.shape)} dimensions"
                refuse(self.caller, cut(item.name), expected, f"shape {array.shape}")

    def _array(self, name: str, value: Any, host: bool) -> Any:
        """Return one array of a feed; one of the device stays there, unless the host reads it."""
        if self.xp is np:
            return self._on_host(name, value)
        if not isinstance(value, self.xp.ndarray):
            if not hasattr(value, "__cuda_array_interface__"):
                return self._on_host(name, value)
            value = self.xp.asarray(value)
        return self.xp.asnumpy(value) if host else value

    def _on_host(self, name: str, value: Any) -> HostArray:
        try:
            return np.asarray(value)
        except ValueError as error:  # lists of several lengths
            raise_if_from_handler(error)
            raise ArgumentError(f"{self.caller}: {cut(name)}: {error}") from None


def _check_seed(seed: object) -> int | None:
    try:
        return None if seed is None else integer(seed)
    except ArgumentError as error:
        raise ArgumentError(f"Session: seed: {error}") from None


def _difference(missing: Sequence[str], extra: Sequence[str]) -> str:
    words = [f"without {cut(', '.join(missing))}"] if missing else []
    return " and ".join(words + ([f"with {cut(', '.join(extra))}"] if extra else []))
