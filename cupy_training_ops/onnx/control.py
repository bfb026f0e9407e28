# SPDX-License-Identifier: MIT
"""Nodes that run graphs of their own: If, Loop, Scan, SequenceMap.

    y = If(cond, a) <then_branch = (a) => Neg(a), else_branch = (a) => a>

`a` is captured: a value of the graph around, which is appended to the inputs of the node and of
its graphs. Conditions and numbers of runs are read on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..errors import ArgumentError, shown
from .graph import Graph, Node, Problems, check_attributes
from .program import Compiler, Upload, host_feeds, node_runners, refuse_in_graph
from .runner import Run, Runner, each
from .standard.table import axis_of, stack
from .steps import run_step

Ints = tuple[int, ...]
HOST_TYPES = np.ndarray, np.generic  # an element of an array is the latter


def runs_graphs(node: Node) -> bool:
    """Return True if a node's operator runs graphs."""
    return node.is_standard and node.op_type in _FORMS


def runner(node: Node) -> Runner | None:
    """Return the runner of a node that runs graphs; None of other nodes."""
    if not runs_graphs(node):
        return None
    optional = {"Loop": 2, "Scan": int(node.version < 9)}.get(node.op_type, 0)
    for k, name in enumerate(node.inputs):
        if not name and k >= optional:
            raise ArgumentError(f"its input {k} is missing")
    return _FORMS[node.op_type](node)


# ---- a graph that a node runs --------------------------------------------------------------------


class _Part:
    """A graph that a node runs, whose nodes all have runners.

    n_own: how many inputs it has without the captured ones. on_host: for each input, True if its
    nodes read it on the host.
    """

    def __init__(self, node: Node, name: str, has_condition: bool = False) -> None:
        """name: the node's attribute that is the graph. has_condition: output 0 is a condition."""
        graph = node.attributes.get(name)
        if not isinstance(graph, Graph):
            raise ArgumentError(f"its attribute {name} is missing, or no graph")
        self.graph, problems = graph, Problems(f"its graph {name}")
        self.runners = node_runners(graph, problems, own=runner)
        for i, each_runner in self.runners.items():
            if each_runner.updates:
                problems.add(graph.nodes[i].title, "it updates what it reads, inside of a graph")
        problems.refuse()
        self.n_own = len(graph.inputs) - graph.n_captured
        self.read = self._condition() if has_condition else frozenset()
        fed = host_feeds(graph, self.runners, self.read)
        self.on_host = [item.name in fed for item in graph.inputs]

    def _condition(self) -> frozenset[str]:
        """Return the name of output 0, if the host may compute it of constants and single numbers.

        Else it is copied there, as it is made of arrays that are better left on the device.
        """
        graph, names = self.graph, {item.name for item in self.graph.outputs[:1]}
        single = {item.name for item in graph.inputs if item.shape in ((), (1,))}
        for i, node in enumerate(graph.nodes):
            sources = {"", *single, *graph.constants}
            if self.runners[i].follows and sources.issuperset(node.inputs):
                single.update(node.outputs)
        return frozenset(names & single)

    def host_places(self, first: int = 0) -> frozenset[int]:
        """Return indices of the node's inputs that the graph reads on the host.

        first: the index of the node's input that is the graph's input 0.
        """
        return frozenset(first + k for k, is_read in enumerate(self.on_host) if is_read)

    def compile(self, xp: Any) -> _Compiled:
        """Return the graph as a program over an array module, numpy or cupy."""
        return _Compiled(self, xp)


class _Compiled:
    """A compiled graph, run step by step: `run([x, y])` returns the list of its outputs."""

    def __init__(self, part: _Part, xp: Any) -> None:
        self._xp = xp
        self._program = Compiler(part.graph, xp, part.runners, read=part.read).compile()
        self._names = [item.name for item in part.graph.inputs]
        self._outputs = part.graph.outputs
        self._upload = Upload(xp, repeats=True)

    def place(self, k: int, value: Any) -> Any:
        """Return a value copied, if need be, to the host or device, where the graph reads input k.

        As it is, if the graph does not read it.
        """
        known = self._program.feeds.get(self._names[k])
        if known is None:
            return value
        return self.on_host(value) if known[1] else self.on_device(value)

    def on_host(self, value: Any) -> Any:
        """Return a value (array, list of arrays, None) on the host."""
        return value if self._xp is np else each(self._on_host, value)

    def _on_host(self, array: Any) -> Any:
        if isinstance(array, HOST_TYPES):
            return array
        refuse_in_graph(self._xp, "a value of the device is needed on the host")
        return self._xp.asnumpy(array)

    def on_device(self, value: Any) -> Any:
        """Return a value on the device: where equal ones of the host were copied before, these."""
        return value if self._xp is np else each(self._on_device, value)

    def _on_device(self, array: Any) -> Any:
        return self._upload.copy(np.asarray(array)) if isinstance(array, HOST_TYPES) else array

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs, each on host or device as it was computed; inputs: by position.

        An output may be an input, or a constant of the graph.
        """
        program = self._program
        values = program.values.copy()
        for k, value in enumerate(inputs):
            if self._names[k] in program.feeds:
                values[program.feeds[self._names[k]][0]] = self.place(k, value)
        for step in program.steps:
            run_step(step, values)
        return [values[slot] for _, slot in program.results]

    def stack(self, k: int, arrays: Sequence[Any]) -> Any:
        """Return output k of all runs, `arrays`, stacked along a new first axis.

        Without a run it is empty, of the type and extents that the graph declares.
        """
        item = self._outputs[k]
        if arrays:
            shapes = sorted({array.shape for array in arrays})
            if len(shapes) > 1:
                got = f"{shapes[0]} and {shapes[1]}"
                raise ArgumentError(f"{item.name}: expected one shape in all runs, got {got}")
            return stack(self._xp, arrays)
        if item.dtype is None or item.shape is None:
            expected = "a declared type and rank, as nothing ran"
            raise ArgumentError(f"{item.name}: expected {expected}, got none")
        extents = [n if isinstance(n, int) else 0 for n in item.shape]
        return self._xp.empty((0, *extents), item.dtype)


def _flag(value: Any, name: str) -> bool:
    """Return the bool in an array of the host of one element; name: in messages."""
    if value.size != 1:
        raise ArgumentError(f"{name}: expected one value, got shape {value.shape}")
    return bool(value.reshape(-1)[0])


def _control_runner(make: Callable[[Any], Run], host: frozenset[int]) -> Runner:
    """Return the Runner of a node that runs graphs; make(xp) returns its run.

    host: indices of the inputs that the host reads.
    """
    return Runner(make, host=host, follows=True, grows=True, keeps=True)


def _expect(n: int, expected: int, what: str) -> None:
    if n != expected:
        raise ArgumentError(f"{what}: expected {expected}, got {n}")


# ---- If ------------------------------------------------------------------------------------------


def _if(node: Node) -> Runner:
    """Return the runner of If(cond, captured...)."""
    parts = [_Part(node, name) for name in ("else_branch", "then_branch")]
    for part in parts:
        _expect(part.n_own, 0, "inputs of a branch")
        _expect(len(part.graph.outputs), len(node.outputs), "outputs of a branch")
    host = frozenset({0}).union(*(part.host_places(1) for part in parts))
    return _control_runner(partial(_make_if, parts), host)


def _make_if(parts: Sequence[_Part], xp: Any) -> Run:
    return partial(_run_if, [part.compile(xp) for part in parts])


def _run_if(branches: Sequence[_Compiled], values: list[Any]) -> list[Any]:
    """Return the outputs of branches[cond]: [else, then]; values: cond, then what they capture."""
    branch = branches[_flag(values[0], "cond")]
    return [branch.on_device(result) for result in branch.run(values[1:])]


# ---- Loop ----------------------------------------------------------------------------------------


def _loop(node: Node) -> Runner:
    """Return the runner of Loop(M, cond, states..., captured...)."""
    body = _Part(node, "body", has_condition=True)
    n_states = len(node.inputs) - 2 - body.graph.n_captured
    _expect(body.n_own, 2 + n_states, "inputs of the body")
    if len(body.graph.outputs) < max(1 + n_states, len(node.outputs) + 1):
        words = f"at least {max(n_states, len(node.outputs)) + 1}"
        raise ArgumentError(f"outputs of the body: expected {words}")
    make = partial(_make_loop, body, n_states)
    return _control_runner(make, body.host_places() | {0, 1})


def _make_loop(body: _Part, n_states: int, xp: Any) -> Run:
    return partial(_run_loop, body.compile(xp), n_states, len(body.graph.outputs))


def _run_loop(body: _Compiled, n_states: int, n_outputs: int, values: list[Any]) -> list[Any]:
    """Return the last states, then a stack over all runs of each further output of the body.

    n_outputs: of the body. values: the most runs M (None: no limit), cond (None: True), n_states
    states, captured values. The body computes (cond, states..., scans...) of (iteration, cond,
    states..., captured...).
    """
    most = None if values[0] is None else _number(values[0])
    goes_on = values[1] is None or _flag(values[1], "cond")
    states, captured = values[2 : 2 + n_states], values[2 + n_states :]
    stacks: list[list[Any]] = [[] for _ in range(1 + n_states, n_outputs)]
    condition, i = body.place(1, np.array(goes_on)), 0
    while goes_on and (most is None or i < most):
        results = body.run([np.array(i, np.int64), condition, *states, *captured])
        if results[0] is not condition:  # most bodies return it as it is: no copy to the host
            goes_on = _flag(body.on_host(results[0]), "cond")
            condition = body.place(1, np.array(goes_on))
        states = results[1 : 1 + n_states]
        for column, result in zip(stacks, results[1 + n_states :], strict=True):
            column.append(body.on_device(result))
        i += 1
    scans = [body.stack(1 + n_states + k, stack) for k, stack in enumerate(stacks)]
    return [*(body.on_device(state) for state in states), *scans]


def _number(value: Any) -> int:
    """Return a loop's largest number of runs, M, from an array of one element."""
    if value.size != 1:
        raise ArgumentError(f"M: expected one value, got shape {value.shape}")
    return int(value.reshape(-1)[0])


# ---- Scan ----------------------------------------------------------------------------------------

_SCAN = {
    "num_scan_inputs": int,
    "scan_input_axes": Ints,
    "scan_input_directions": Ints,
    "scan_output_axes": Ints,
    "scan_output_directions": Ints,
    "directions": Ints,  # of inputs, in opset 8
}


class _Scan:
    """A Scan's inputs and outputs: n_states states, then n_scans arrays that it goes over.

    axes, backward: of each scanned array its axis, and 1 if it is read from the end. out_axes,
    out_backward: of each stack that comes out. is_old: opset 8, whose first input is sequence
    lengths, and whose arrays have a batch dimension first.
    """

    def __init__(self, node: Node, body: _Part) -> None:
        rest = {name: value for name, value in node.attributes.items() if name != "body"}
        unknown = sorted(rest.keys() - _SCAN.keys())
        if unknown:
            raise ArgumentError(f"unknown attributes {shown(unknown)}")
        known = check_attributes(rest, _SCAN)
        self.is_old = node.version < 9
        n_inputs = len(node.inputs) - body.graph.n_captured - self.is_old
        if "num_scan_inputs" not in known:
            raise ArgumentError("its attribute num_scan_inputs is missing")
        self.n_scans = known["num_scan_inputs"]
        self.n_states = n_inputs - self.n_scans
        _expect(body.n_own, n_inputs, "inputs of the body")
        if not (self.n_scans > 0 and 0 <= self.n_states <= len(body.graph.outputs)):
            raise ArgumentError(f"num_scan_inputs={self.n_scans} does not fit its inputs")
        _expect(len(body.graph.outputs), len(node.outputs), "outputs of the body")
        n_stacks = len(node.outputs) - self.n_states
        backward = known.get("scan_input_directions", known.get("directions", ()))
        self.axes = _each_of(known.get("scan_input_axes", ()), self.n_scans, "scan_input_axes")
        self.backward = _each_of(backward, self.n_scans, "scan_input_directions")
        self.out_axes = _each_of(known.get("scan_output_axes", ()), n_stacks, "scan_output_axes")
        self.out_backward = _each_of(
            known.get("scan_output_directions", ()), n_stacks, "scan_output_directions"
        )


def _each_of(values: Ints, n: int, name: str) -> Ints:
    """Return the n values of the attribute `name`; n zeros where it is left out."""
    if values and len(values) != n:
        raise ArgumentError(f"{name}: expected {n} integers, got {len(values)}")
    return values or (0,) * n


def _scan(node: Node) -> Runner:
    """Return the runner of Scan(states..., scanned..., captured...)."""
    body = _Part(node, "body")
    form = _Scan(node, body)
    first = int(form.is_old)
    host = body.host_places(first)
    if form.is_old:
        if node.inputs[0]:
            raise ArgumentError("sequence_lens: expected none, got an input")
        host = frozenset()
    return _control_runner(partial(_make_scan, form, body), host)


def _make_scan(form: _Scan, body: _Part, xp: Any) -> Run:
    return partial(_run_batches if form.is_old else _run_scan, xp, body.compile(xp), form)


def _run_scan(xp: Any, body: _Compiled, form: _Scan, values: list[Any]) -> list[Any]:
    """Return the last states, then the stacks; values: states, scanned arrays, captured values.

    body: the compiled graph. form: how many these are, and along which axes and in which direction
    arrays are scanned. Run t of the body computes (states..., rows of stacks...) of the states and
    row t of each scanned array.
    """
    n = form.n_states
    states, captured = values[:n], values[n + form.n_scans :]
    scans = []
    for x, axis, backward in zip(
        values[n : n + form.n_scans], form.axes, form.backward, strict=True
    ):
        rows = _module_of(xp, x).moveaxis(x, axis_of(axis, x.ndim), 0)
        scans.append(rows[::-1] if backward else rows)
    lengths = {len(rows) for rows in scans}
    if len(lengths) > 1:
        raise ArgumentError(f"expected one length of what is scanned, got {sorted(lengths)}")
    stacks: list[list[Any]] = [[] for _ in form.out_axes]
    for t in range(lengths.pop()):
        results = body.run([*states, *(rows[t] for rows in scans), *captured])
        states = results[:n]
        for column, result in zip(stacks, results[n:], strict=True):
            column.append(body.on_device(result))
    columns = []
    for k, (axis, backward) in enumerate(zip(form.out_axes, form.out_backward, strict=True)):
        stack = stacks[k][::-1] if backward else stacks[k]
        y = body.stack(n + k, stack)
        columns.append(xp.ascontiguousarray(xp.moveaxis(y, 0, axis_of(axis, y.ndim))))
    return [*(body.on_device(state) for state in states), *columns]


def _module_of(xp: Any, x: Any) -> Any:
    return np if isinstance(x, np.ndarray) else xp


def _run_batches(xp: Any, body: _Compiled, form: _Scan, values: list[Any]) -> list[Any]:
    """Return the results of _run_scan for each element of a batch, stacked, as in opset 8.

    values: None for sequence lengths, then states, scanned arrays and captured values.
    """
    n = form.n_states + form.n_scans
    own, captured = values[1 : 1 + n], values[1 + n :]
    sizes = {len(x) for x in own}
    if len(sizes) != 1 or 0 in sizes:
        raise ArgumentError(f"expected one extent of batches, got {sorted(sizes)}")
    rows = [_run_scan(xp, body, form, [*(x[b] for x in own), *captured]) for b in range(*sizes)]
    return [stack(xp, column) for column in zip(*rows, strict=True)]


# ---- SequenceMap ---------------------------------------------------------------------------------


def _sequence_map(node: Node) -> Runner:
    """Return the runner of SequenceMap(sequence, sequences or arrays..., captured...)."""
    body = _Part(node, "body")
    n_own = len(node.inputs) - body.graph.n_captured
    _expect(body.n_own, n_own, "inputs of the body")
    _expect(len(body.graph.outputs), len(node.outputs), "outputs of the body")
    make = partial(_make_sequence_map, body, n_own)
    return _control_runner(make, body.host_places())


def _make_sequence_map(body: _Part, n_own: int, xp: Any) -> Run:
    return partial(_run_sequence_map, body.compile(xp), n_own, len(body.graph.outputs))


def _run_sequence_map(body: _Compiled, n_own: int, n_outputs: int, values: list[Any]) -> list[Any]:
    """Return n_outputs lists: each output of the body, run for each element of the sequences.

    values: n_own inputs, lists or arrays that are the same in each run, then captured values.
    """
    if not isinstance(values[0], list):
        raise ArgumentError("input_sequence: expected a sequence, got an array")
    results: list[list[Any]] = [[] for _ in range(n_outputs)]
    for inputs in _rows(values[:n_own], len(values[0])):
        for items, result in zip(results, body.run([*inputs, *values[n_own:]]), strict=True):
            items.append(body.on_device(result))
    return results


def _rows(values: Sequence[Any], n: int) -> Iterator[list[Any]]:
    """Yield the inputs of each of n runs: element i of each list, and whole arrays."""
    for value in values:
        if isinstance(value, list) and len(value) != n:
            raise ArgumentError(f"expected sequences of {n} arrays, got one of {len(value)}")
    for i in range(n):
        yield [value[i] if isinstance(value, list) else value for value in values]


# Each makes the runner of a node.
_FORMS = {"If": _if, "Loop": _loop, "Scan": _scan, "SequenceMap": _sequence_map}
