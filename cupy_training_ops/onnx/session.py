# SPDX-License-Identifier: MIT
"""A model that runs on NumPy or CuPy arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import setitem
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ..declare.schema import integer
from ..device.marks import NO_MARKS, Marks, Note, marked
from ..dtypes import HostArray, dtype_name
from ..errors import ArgumentError, DtypeError, OpError, cut, pass_on, refuse, shown
from . import gradients
from .activations import Activations, with_codes
from .extents import Extents
from .graph import Graph, Problems, Value
from .labels import Labels, with_checks
from .passes import prepared
from .program import Compiler, Program, runners, side_by_side
from .reading import Source, read
from .schedule import scheduled
from .type_checks import check_divisors, check_types
from .whole_products import with_tf32, with_whole_products


class Notes(NamedTuple):
    """What is noted as a program runs.

    begun: that what it changes of states can be put back. steps: of some steps, by their places, at
    once with what each writes. replay: at once with a captured run.
    """

    begun: Note | None = None
    steps: Mapping[int, Marks] = MappingProxyType({})
    replay: Marks = NO_MARKS


NO_NOTES = Notes()


class Session:
    """Runs an ONNX graph: `Session(model, xp).run(feeds)`.

    model: a path, the bytes of a file, or an onnx.ModelProto. xp: numpy or cupy. A model that
    cannot be run is refused here, with every node that is the reason. seed: of the random masks;
    the system's without one. activations: the policy of an ActivationStash, by which what goes from
    the forward to the backward part of a training graph waits as codes.
    """

    model: Any
    _activations: Activations | None = None

    def __init__(
        self,
        model: Source,
        xp: Any = np,
        *,
        seed: int | None = None,
        activations: str | None = None,
        tf32: bool = False,
        arrays: Collection[str] = (),
    ) -> None:
        graph, self.model, problems = read(model)
        self._open(graph, problems, xp, seed, activations, tf32, arrays)

    @classmethod
    def of_graph(cls, graph: Graph, name: str, xp: Any, seed: int | None = None) -> Session:
        """The session of a graph that was read."""
        session = cls.__new__(cls)
        session._open(graph, Problems(name), xp, seed)
        return session

    def _open(
        self,
        graph: Graph,
        problems: Problems,
        xp: Any,
        seed: int | None,
        activations: str | None = None,
        tf32: bool = False,
        arrays: Collection[str] = (),
    ) -> None:
        if not hasattr(xp, "ndarray"):
            refuse("Session", "xp", "numpy or cupy, the module", shown(xp))
        graph = prepared(graph, problems, _checked_seed(seed))
        if tf32:
            graph = with_tf32(graph)
        found = runners(graph, problems)
        first = graph
        check_types(graph, found, problems)
        check_divisors(graph, problems)
        problems.refuse()
        graph = scheduled(with_whole_products(graph))
        graph = with_checks(graph) if xp is np else graph
        self.labels = Labels(graph)
        known = {id(first.nodes[i]): runner for i, runner in found.items()}
        found = runners(graph, problems, known)
        if activations is not None:
            self._activations = Activations(activations)
            graph = with_codes(graph)
            found = runners(graph, problems, known, self._activations.runner)
        if xp is not np:
            found = self.labels.runners(graph, found)
        found = gradients.runners(graph, found)
        self.graph, self.xp = graph, xp
        self.extents = Extents(graph)
        self._said = {item.name: item for item in graph.inputs}
        self.program: Program = Compiler(graph, xp, found, arrays).compile()
        self._fed_statistics = [self.program.feeds[n][0] for n in self.program.statistics]
        self._written: tuple[Any, ...] = ()
        self._save_all(self.program.written)
        self._is_begun = False

    def _save_all(self, written: tuple[Any, ...]) -> None:
        """Have memory to save all that runs write, whatever is fed."""
        self._written = written
        self._saved = [(array, array.copy()) for array in written]
        self._before = self._saved  # and what was fed to the last run

    @property
    def states(self) -> dict[str, Any]:
        """Constants that runs update in place, by name: running statistics, states of random
        numbers."""
        return {name: self.program.values[slot] for name, slot in self.program.states.items()}

    def share(self, other: Session) -> None:
        """Take the constants that another session updates for those of the same name."""
        for name, array in other.states.items():
            slot = self.program.constants.get(name)
            if slot is not None:
                self.program.values[slot] = array
        own = [array for name, array in self.states.items() if name not in other.states]
        self._save_all((*other._written, *own) if self.states else ())

    def own_statistics(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Those of some arrays, which are fed in each run, that runs update: in one memory."""
        names = sorted(self.program.statistics & arrays.keys())
        if not names:
            return {}
        memory, parts = side_by_side(self.xp, [arrays[name] for name in names])
        self._save_all((*self._written, memory))
        others = self.program.statistics - arrays.keys()
        self._fed_statistics = [self.program.feeds[name][0] for name in others]
        return dict(zip(names, parts, strict=True))

    def report(self) -> dict[str, Any]:
        """What waited as codes in the last run, as ActivationStash.report says it."""
        if self._activations is None:
            raise ArgumentError("Session: report: there are no activations as codes")
        return self._activations.stash.report()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of what `run` takes."""
        return tuple(self.program.feeds)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what it gives."""
        return tuple(name for name, _ in self.program.results)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The graph's outputs by name; arrays that it updates in place are those given."""
        if not isinstance(feeds, Mapping):
            names = cut(str(sorted(self.program.feeds)))
            refuse("Session", "feeds", f"a dictionary of {names}", type(feeds).__name__)
        for name, value in feeds.items():
            self.labels.look_at(name, value)
        if self._is_begun:  # and was stopped while it was put back
            self.put_back()
        try:
            begun = Notes(partial(setattr, self, "_is_begun", True))
            results = self._ran_whole(self._fed(feeds), begun)
            self._is_begun = False
            return results
        except BaseException:
            if self._is_begun:
                self.put_back()
            raise

    def run_over(self, fixed: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
        """What runs, with `Notes`, on feeds beside these, which are the same arrays each time;
        nothing is put back."""
        known: list[list[Any]] = []

        def values_of(feeds: Mapping[str, Any]) -> list[Any]:
            places = {name: self.program.feeds[name][0] for name in feeds} if known else {}
            values = known[0].copy() if known else self._fed({**fixed, **feeds})
            new = {name: self.placed(name, feeds[name]) for name in places}
            self.extents.check(new)
            for name, place in places.items():
                values[place] = new[name]
            if not known:
                own = {self.program.feeds[name][0] for name in fixed}
                given = {place for place, _ in self.program.feeds.values()} - own
                known.append([None if i in given else v for i, v in enumerate(values)])
            return values

        def run(feeds: Mapping[str, Any], notes: Notes = NO_NOTES) -> dict[str, Any]:
            for name, value in feeds.items():
                self.labels.look_at(name, value)
            return self._ran_whole(values_of(feeds), notes)

        return run

    def run_seen(self, feeds: Mapping[str, Any], notes: Notes = NO_NOTES) -> dict[str, Any]:
        """The same of feeds that are nobody else's, and whose labels were looked at."""
        return self._ran(self._fed(feeds), notes, ())

    def put_back(self) -> None:
        """Give what the last run has changed of states the values from before; at once, but for
        what CuPy does."""
        arrays, copies = [a for a, _ in self._before], [c for _, c in self._before]
        list(map(setitem, arrays, repeat(...), copies))
        self._is_begun = False

    def _ran_whole(self, values: list[Any], notes: Notes) -> dict[str, Any]:
        return self._ran(values, notes, [values[slot] for slot in self._fed_statistics])

    def _ran(self, values: list[Any], notes: Notes, fed: Sequence[Any]) -> dict[str, Any]:
        """The results; of states, and of some arrays that are fed, the values before are kept."""
        for array, copy in self._saved:
            copy[...] = array
        own = [x for x in fed if getattr(x.flags, "writeable", True)]  # others are refused
        self._before = [*self._saved, *[(array, array.copy()) for array in own]]
        if notes.begun is not None:
            notes.begun()
        self._run(values, notes.steps)
        copied = self.program.copied
        return {n: values[k].copy() if k in copied else values[k] for n, k in self.program.results}

    def _run(self, values: list[Any], marks: Mapping[int, Marks]) -> None:
        kept = self._activations.stash if self._activations else contextlib.nullcontext()
        with np.errstate(all="ignore"), kept:
            for place, step in enumerate(self.program.steps):
                if place in marks:
                    marked(marks[place], self._run_step, step, values)
                else:
                    self._run_step(step, values)

    def _run_step(self, step: Any, values: list[Any]) -> None:
        run, inputs, outputs, dead, node, _ = step
        try:
            results = run([values[slot] for slot in inputs])
        except MemoryError:
            raise
        except OpError as error:
            pass_on(error)
            raise type(error)(f"{node.title}: {error}") from None
        except Exception as error:
            pass_on(error)
            raise ArgumentError(f"{node.title}: {error}") from error
        for slot, result in zip(outputs, results, strict=False):
            values[slot] = result
        for k, slot in enumerate(outputs):
            if values[slot] is None and slot not in dead:
                raise ArgumentError(f"{node.title}: its output {k} is not computed here")
        for slot in dead:
            values[slot] = None

    def _fed(self, feeds: Mapping[str, Any]) -> list[Any]:
        """The values before the first step."""
        values, known = self.program.values.copy(), self.program.feeds
        missing = sorted(known.keys() - feeds.keys())
        extra = sorted(map(str, feeds.keys() - known.keys()))
        if missing or extra:
            refuse("Session", "feeds", cut(str(sorted(known))), _difference(missing, extra))
        placed = {name: self.placed(name, value) for name, value in feeds.items()}
        self.extents.check(placed)
        for name, value in placed.items():
            values[known[name][0]] = value
        return values

    def placed(self, name: str, value: Any) -> Any:
        """What is fed under a name, where the graph needs it; refused where it does not fit."""
        found = self.checked(name, value)
        if self.is_on_host(name):
            return found
        if isinstance(found, list):
            return [self.xp.asarray(array) for array in found]
        return self.xp.asarray(found)

    def is_on_host(self, name: str) -> bool:
        """Whether what is fed under a name is read on the host."""
        return self.program.feeds[name][1]

    def checked(self, name: str, value: Any) -> Any:
        """What is fed under a name, as arrays; refused where it does not fit. It is on the device
        if it is there, and not read on the host."""
        said, host = self._said[name], self.is_on_host(name)
        if said.is_sequence and isinstance(value, list | tuple):
            found: Any = [self._taken(name, item, host) for item in value]
        else:
            found = self._taken(name, value, host)
        self._check(said, found)
        return found

    def _check(self, said: Value, value: Any) -> None:
        """What is fed has the type and the rank that a model says."""
        if said.is_sequence != isinstance(value, list):
            got = "an array" if said.is_sequence else "a sequence"
            refuse("Session", cut(said.name), "the other of array and sequence", got)
        for array in value if said.is_sequence else (value,):
            if said.dtype is not None and array.dtype != said.dtype:
                names = dtype_name(said.dtype), dtype_name(array.dtype)
                raise DtypeError(f"Session: {cut(said.name)}: expected {names[0]}, got {names[1]}")
            if said.shape is not None and len(said.shape) != array.ndim:
                expected = f"{len(said.shape)} dimensions"
                refuse("Session", cut(said.name), expected, f"shape {array.shape}")

    def _taken(self, name: str, value: Any, host: bool) -> Any:
        """An array."""
        if self.xp is np:
            return _on_host(name, value)
        if not isinstance(value, self.xp.ndarray):
            if not hasattr(value, "__cuda_array_interface__"):
                return _on_host(name, value)
            value = self.xp.asarray(value)
        return self.xp.asnumpy(value) if host else value


def _checked_seed(seed: object) -> int | None:
    try:
        return None if seed is None else integer(seed)
    except ArgumentError as error:
        raise ArgumentError(f"Session: seed: {error}") from None


def _on_host(name: str, value: Any) -> HostArray:
    try:
        return np.asarray(value)
    except ValueError as error:  # lists of several lengths
        pass_on(error)
        raise ArgumentError(f"Session: {cut(name)}: {error}") from None


def _difference(missing: Sequence[str], extra: Sequence[str]) -> str:
    words = [f"without {cut(', '.join(missing))}"] if missing else []
    return " and ".join(words + ([f"with {cut(', '.join(extra))}"] if extra else []))
