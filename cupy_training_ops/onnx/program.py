# SPDX-License-Identifier: MIT
"""A graph as a list of steps over slots, which are indices in one list of values.

    y = Gemm(x, w); s = Shape(y); z = Reshape(y, s)
    Step(gemm, (2, 3), (4,))   Step(shape, (4,), (5,))   Step(reshape, (4, 5), (6,))

Shapes, and values that depend on shapes alone, are computed on the host. A value that is needed in
another place than where it is made is copied there once, by a step of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ..errors import OpError, ProviderError, raise_if_from_handler
from ..plan import SCRATCH_ALIGNMENT, align_up
from .graph import Graph, Node, Problems, subgraphs
from .runner import Run, Runner, each, runner_of
from .steps import (
    UNUSED,
    Step,
    aliases_of,
    in_place,
    with_dead_slots,
    with_gradients_in_place,
    written_slots,
)

HOST, DEVICE = True, False
ABSENT = 0  # the slot of None: inputs that are left out
SMALL = 64  # most elements of a constant that may as well be on the host
LARGEST_COPY = 64 << 10  # most bytes of a copy to the device that is reused in the next run
MOST_BYTES = 4 << 20  # of such copies of one step: one for each different value
BLOCK = 512  # bytes that the smallest copy takes
Place = tuple[str, bool]  # a value's name, and True if the host has it; each has a slot of its own


class Program(NamedTuple):
    """Steps, and the values of their slots before the first one.

    A slot is an index in `values`; 0 is None, for inputs that are left out, 1 is for outputs that
    nobody needs.
    """

    steps: tuple[Step, ...]
    values: list[Any]  # of each slot: a constant's array, else None
    feeds: Mapping[str, tuple[int, bool]]  # an input's slot, and True if it is on the host
    results: tuple[tuple[str, int], ...]  # each output's name and slot, in order
    constants: Mapping[str, int]  # slots by name
    states: Mapping[str, int]  # of `constants`, those that steps update in place
    written: tuple[Any, ...]  # the arrays of `states`; those on the device as one array of bytes
    statistics: frozenset[str]  # inputs that batch normalisation updates in place
    writers: Mapping[int, frozenset[str]]  # index of a step: other inputs that it updates
    copied: frozenset[int]  # slots of results whose memory may be a constant's or an input's


def node_runners(
    graph: Graph,
    problems: Problems,
    known: Mapping[int, Runner] = MappingProxyType({}),
    own: Callable[[Node], Runner | None] = lambda _: None,
) -> dict[int, Runner]:
    """Return {node's index: its runner}; nodes that nothing runs are added to `problems`.

    known: runners that exist already, by `id(node)`. own: returns the runner of nodes that the
    caller runs itself (subgraphs, for example), else None.
    """
    runners = {}
    for i, node in enumerate(graph.nodes):
        try:
            runners[i] = known.get(id(node)) or own(node) or runner_of(node)
        except OpError as error:
            problems.add(node.title, error)
        except (TypeError, ValueError, OverflowError) as error:
            raise_if_from_handler(error)
            problems.add(node.title, f"its attributes do not fit: {error}")
    return runners


def on_host(graph: Graph, runners: Mapping[int, Runner], also: Collection[str] = ()) -> set[int]:
    """Return the indices of the nodes that are computed on the host; runners: by node index.

    All their inputs are there (shapes, small constants, results of such nodes), and their results
    are read there, or are no larger than the inputs. Of inputs that are fed to the host only what
    is read there is computed there, as they may be large. also: outputs that are read there.
    """
    read = _read_on_host(graph, runners, also)
    # Names of values that are, or may be, on the host.
    values = {name for name, array in graph.constants.items() if array.size <= SMALL}
    values.update(name for name in graph.constants if name in read)
    fed = {item.name for item in graph.inputs if item.name in read} - values  # and what they make
    places = set()
    for i, node in enumerate(graph.nodes):
        runner = runners[i]
        data = [n for k, n in enumerate(node.inputs) if n and k not in runner.host]
        wanted = any(name in read for name in node.outputs)
        is_fed = not fed.isdisjoint(data)
        fits = runner.follows and all(name in values or name in fed for name in data)
        if fits and (wanted or not (runner.grows or is_fed)):
            places.add(i)
            (fed if is_fed else values).update(node.outputs)
        values.update(node.outputs[k] for k in runner.makes_host if k < len(node.outputs))
    return places


def _read_on_host(
    graph: Graph, runners: Mapping[int, Runner], also: Collection[str] = ()
) -> set[str]:
    """Return the names of values that nodes read on the host, and of those they are made of.

    runners: how each node is run, by its index. also: outputs that are read there.
    """
    read = set(also)
    for i in reversed(range(len(graph.nodes))):
        node, runner = graph.nodes[i], runners[i]
        read.update(n for k, n in enumerate(node.inputs) if k in runner.host)
        if runner.follows and any(name in read for name in node.outputs):
            read.update(node.inputs)
    return read


def host_feeds(graph: Graph, runners: Mapping[int, Runner], also: Collection[str] = ()) -> set[str]:
    """Return the names of inputs that are fed to the host; runners: by a node's index.

    Nodes read them there, or all nodes that read them take a number in place of an array. also:
    outputs that are read there.
    """
    numbers: set[str] = set()
    arrays = {item.name for item in graph.outputs}
    for i, node in enumerate(graph.nodes):
        places = runners[i].host | runners[i].either
        for k, name in enumerate(node.inputs):
            (numbers if k in places else arrays).add(name)
    return _read_on_host(graph, runners, also) | (numbers - arrays)


def coalesce(xp: Any, arrays: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Copy arrays of the module `xp` into one piece of memory.

    Return that, a uint8 array, and the copies in it, of their arrays' types and shapes. Each begins
    at a multiple of SCRATCH_ALIGNMENT bytes.
    """
    nbytes = [align_up(array.nbytes, SCRATCH_ALIGNMENT) for array in arrays]
    memory, parts, start = xp.zeros(sum(nbytes), np.uint8), [], 0
    for array, n in zip(arrays, nbytes, strict=True):
        part = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        part[...] = array
        parts.append(part)
        start += n
    return memory, parts


class Compiler:
    """Makes a Program of a graph for an array module `xp`, numpy or cupy.

    Each value gets a slot for each place (host or device) that has it. A node whose input is in the
    other place gets a step before it that copies the value, once for all later readers.
    """

    def __init__(
        self,
        graph: Graph,
        xp: Any,
        runners: Mapping[int, Runner],
        arrays: Collection[str] = (),
        read: Collection[str] = (),
    ) -> None:
        """Prepare; runners: by a node's index.

        arrays: names of inputs that stay on the device, though all their readers could take
        numbers of the host. read: names of outputs that the caller reads on the host.
        """
        # _on_host: indices of nodes that the host computes. _updated: constants that nodes write.
        # _values: of each slot before the first step. _slots: by (value's name, is on host).
        self._arrays, self._read = arrays, read
        self._graph, self._xp, self._runners = graph, xp, runners
        self._is_host = xp is np
        self._on_host = on_host(graph, runners, read)
        self._updated = {
            node.inputs[k]
            for i, node in enumerate(graph.nodes)
            for k in runners[i].updates
            if k < len(node.inputs)
        } & graph.constants.keys()
        self._values: list[Any] = [None, None]
        self._slots: dict[Place, int] = {}
        self._steps: list[Step] = []
        self._feeds: dict[str, tuple[int, bool]] = {}
        self._uploads: dict[int, Upload] = {}  # by the slot of the copy

    def compile(self) -> Program:
        """Return the program."""
        read = _read_on_host(self._graph, self._runners, self._read)
        numbers = host_feeds(self._graph, self._runners, self._read) - set(self._arrays)
        for item in self._graph.inputs:
            if item.name not in self._graph.constants:
                place = self._is_host or item.name in read or item.name in numbers
                self._feeds[item.name] = (self._slot((item.name, place)), place)
        for i, node in enumerate(self._graph.nodes):
            self._add(node, self._runners[i], i in self._on_host or self._is_host)
        results = tuple((item.name, self._any_slot(item.name)) for item in self._graph.outputs)
        of_parts = {slot for step in self._steps if subgraphs(step.node) for slot in step.outputs}
        filled = {slot for slot, value in enumerate(self._values) if value is not None}
        wanted, fed = {slot for _, slot in results}, {slot for slot, _ in self._feeds.values()}
        lasting = wanted | filled | fed | {ABSENT}
        written = written_slots(self._steps)
        for slot, upload in self._uploads.items():
            upload.repeats = slot not in written
        self._steps = [
            step._replace(run=partial(_run_owning, step.run))
            if subgraphs(step.node) and not written.isdisjoint(step.outputs)
            else step
            for step in self._steps
        ]
        constants = {n: self._any_slot(n) for n in self._graph.constants if self._has(n)}
        states = {n: slot for n, slot in constants.items() if n in self._updated}
        steps = with_dead_slots(with_gradients_in_place(self._steps, wanted), lasting)
        steps = in_place(steps, lasting)
        return Program(
            tuple(steps),
            self._values,
            self._feeds,
            results,
            constants,
            states,
            self._coalesce(states.values()),
            *self._updated_feeds(steps),
            aliases_of(self._steps, wanted, {*filled, *of_parts, *self._uploads, *(fed - written)}),
        )

    def _coalesce(self, slots: Collection[int]) -> tuple[Any, ...]:
        """Put the slots' arrays of the device into one piece of memory, so that one copy saves all.

        Return this memory, if there is any, and the slots' arrays of the host.
        """
        on_device = [slot for slot in slots if isinstance(self._values[slot], self._xp.ndarray)]
        memory, parts = coalesce(self._xp, [self._values[slot] for slot in on_device])
        for slot, part in zip(on_device, parts, strict=True):
            self._values[slot] = part
        rest = tuple(self._values[slot] for slot in slots if slot not in on_device)
        return (memory, *rest) if on_device else rest

    def _updated_feeds(
        self, steps: Sequence[Step]
    ) -> tuple[frozenset[str], Mapping[int, frozenset[str]]]:
        """Return names of fed inputs that batch norms update, {index of a step: others it updates}.

        Running statistics are small: a session copies them before each run, to restore them if it
        is stopped. Other inputs, such as weights, are not copied: the caller marks their steps.
        """
        names = {slot: name for name, (slot, _) in self._feeds.items()}
        statistics: set[str] = set()
        writers: dict[int, frozenset[str]] = {}
        for i, step in enumerate(steps):
            updates = step.runner.updates if step.runner else ()
            fed = {names[s] for k, s in enumerate(step.inputs) if k in updates and s in names}
            if step.runner and step.runner.op and step.runner.op.family == "batch_norm":
                statistics |= fed
            elif fed:
                writers[i] = frozenset(fed)
        return frozenset(statistics), writers

    def _has(self, name: str) -> bool:
        return (name, HOST) in self._slots or (name, DEVICE) in self._slots

    def _slot(self, place: Place) -> int:
        """Return the slot of a value in a place, a new one if it has none."""
        if place not in self._slots:
            self._slots[place] = len(self._values)
            self._values.append(None)
        return self._slots[place]

    def _any_slot(self, name: str) -> int:
        """Return a value's slot, on xp's side if it is there; a constant gets one if need be."""
        for place in (self._is_host, not self._is_host):
            if (name, place) in self._slots:
                return self._slots[name, place]
        return self._constant((name, self._is_host))

    def _constant(self, place: Place) -> int:
        """Place a constant on host or device, and return its slot."""
        array = self._graph.constants[place[0]]
        slot = self._slot(place)
        self._values[slot] = array if place[1] else self._xp.asarray(array)
        return slot

    def _slot_of(self, name: str, host: bool, node: Node) -> int:
        """Return the slot of a value on the host (else the device); add a step to copy it there.

        node: the reader, which errors of the copy name.
        """
        if not name:
            return ABSENT
        if (name, host) in self._slots:
            return self._slots[name, host]
        if name in self._graph.constants:
            return self._constant((name, host))
        source, target = self._slots[name, not host], self._slot((name, host))
        copy = self._download if host else self._uploads.setdefault(target, Upload(self._xp))
        self._steps.append(Step(copy, (source,), (target,), (), node))
        return target

    def _download(self, values: list[Any]) -> Sequence[Any]:
        refuse_in_graph(self._xp, "a value of the device is needed on the host")
        return (each(self._xp.asnumpy, values[0]),)

    def _add(self, node: Node, runner: Runner, host: bool) -> None:
        """Add a node's step, behind copies of its inputs; host: it is computed there."""
        inputs = tuple(self._input(node, runner, k, host) for k in range(len(node.inputs)))
        outputs = tuple(
            self._slot((name, host or k in runner.makes_host)) if name else UNUSED
            for k, name in enumerate(node.outputs)
        )
        run = runner.make(np if host else self._xp)
        self._steps.append(Step(run, inputs, outputs, (), node, runner))

    def _input(self, node: Node, runner: Runner, k: int, host: bool) -> int:
        """Return the slot of a node's input k, in the place where the node reads it."""
        name = node.inputs[k]
        if runner.shapes_only or k in runner.either:
            for place in (self._is_host, not self._is_host):
                if (name, place) in self._slots:
                    return self._slots[name, place]
        return self._slot_of(name, host or k in runner.host, node)


def _run_owning(run: Run, values: list[Any]) -> Sequence[Any]:
    """Return the results of a node's subgraphs, copied where they are no inputs of the node.

    They may be constants or copies that later runs of the subgraphs read.
    """
    inputs = {id(a) for value in values for a in (value if isinstance(value, list) else [value])}
    return [each(lambda a: a if id(a) in inputs else a.copy(), result) for result in run(values)]


class Upload:
    """The run of a step that copies a value from host to device: `upload([value])` is `(copy,)`.

    repeats: True if no step writes the copies, so that an equal value later gets the same copy.
    """

    def __init__(self, xp: Any, repeats: bool = False) -> None:
        self._xp, self.repeats = xp, repeats
        self._copies: dict[object, Any] = {}  # of small arrays, by dtype, shape and bytes
        self._nbytes = 0  # of these
        self._graphs: Any = None
        if hasattr(xp, "cuda"):
            from ..device import graphs

            self._graphs = graphs

    def __call__(self, values: list[Any]) -> Sequence[Any]:
        """Return [values[0] on the device]: an array, a list of arrays, or EMPTY."""
        return (each(self.copy, values[0]),)

    def copy(self, array: Any) -> Any:
        """Return an array of the host on the device, an earlier copy if that may be."""
        if not self.repeats or array.nbytes > LARGEST_COPY:
            refuse_in_graph(self._xp, "a value of the host is made anew in each step")
            return self._xp.asarray(array)
        form = array.dtype, array.shape, array.tobytes()
        if form not in self._copies:
            refuse_in_graph(self._xp, "a value of the host is another than in the step before")
            self._nbytes += align_up(array.nbytes or 1, BLOCK)
            if self._nbytes > MOST_BYTES:
                self._copies.clear()
                self._nbytes = align_up(array.nbytes or 1, BLOCK)
            self._copies[form] = self._lasting(array)
        copy = self._copies[form]
        if self._graphs is not None:
            self._graphs.keep_alive(copy)
        return copy

    def _lasting(self, array: Any) -> Any:
        """Return a copy that outlives the run: in no memory that later runs write, as a plan's."""
        if self._graphs is None:
            return self._xp.asarray(array)
        with self._xp.cuda.using_allocator(self._xp.get_default_memory_pool().malloc):
            return self._xp.asarray(array)


def refuse_in_graph(xp: Any, why: str) -> None:
    """Refuse a copy between host and device while a graph is captured."""
    if hasattr(xp, "cuda"):
        from ..device import graphs

        if graphs.owns_memory():
            raise ProviderError(
                f"{why}, which a captured graph cannot follow: run without graph=True"
            )
