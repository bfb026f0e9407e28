# SPDX-License-Identifier: MIT
"""Gradients of nodes that run graphs: each graph is run once more, with its gradients behind it.

s, ys = Loop(n, c, s_0) <(i, c, s) => (c, f(s), g(s))>

The loop also gives the s that each run begins with. Then, from the last run to the first:

ds = Loop(n, "", ds_n) <(j, c, ds) => (c, f'(s_i) ds + g'(s_i) dys_i)>    i = n - 1 - j

A rule's `site` is a forward node: site.inputs, site.outputs and site.dys (gradients of the outputs)
are values of the graph, site.op adds a node, site.own one of com.microsoft, site.wanted says which
inputs need a gradient. The rule returns a gradient for each input, None without one;
it may leave out the last ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...dtypes import Dtype
from ...errors import ArgumentError, cut
from ..graph import Graph, Node, Problems, Value, parts_around, places_of
from ..models import with_captures
from ..writing import with_inferred
from .builder import SUFFIX, add_products, dependents
from .rules import BOOL, INT64, Site, Term, gradient
from .writer import Writer, is_real, sum_of_sequences, zeros_of


class _Body:
    """A graph that a node runs (a branch or a body), to which gradients are added by `writer`.

    part: the graph. outputs: names of its outputs.
    """

    def __init__(self, site: Site, part: Graph, own: Sequence[Value]) -> None:
        """Prepare; own: the inputs before the captured ones, with the types known outside.

        Captured values, and the gradients of the node's outputs, become inputs, constants constants
        of the body.
        """
        self.part, writer = part, site.writer
        n = len(part.inputs) - part.n_captured
        # Inputs of the body: captured values by name, and gradients (with the value they are like).
        around = dict.fromkeys(item.name for item in part.inputs[n:])
        self._constants = {
            name: writer.constants[name]
            for name in around
            if name in writer.constants and name not in writer.parameters
        }
        around |= {dy.name: y.name for dy, y in zip(site.dys, site.outputs, strict=False) if dy}
        values = [
            _value(writer, like or name, name)
            for name, like in around.items()
            if name not in self._constants
        ]
        inputs = (*own, *values)
        types = {v.name: v.dtype for v in inputs if v.dtype and v.is_array}
        graph = replace(
            part,
            inputs=inputs,
            constants={**part.constants, **self._constants},
            types={**part.types, **types},
            shapes={v.name: v.shape for v in inputs if v.shape is not None},
            n_captured=0,
        )
        self.writer = Writer(with_inferred(graph))
        writer.names |= self.writer.names
        self.writer.names = writer.names
        self.outputs = [item.name for item in part.outputs]

    def add_gradients(self, seeds: Sequence[tuple[str, str]], names: Sequence[str]) -> Any:
        """Add nodes for the gradients of `names`; return {name: gradient's name}.

        seeds: (value, its gradient) by names.
        """
        places = range(len(self.writer.forward))
        return add_products(self.writer, places, seeds, names, Problems("its graph"))

    def moving(self, names: set[str], states: Sequence[str], results: Sequence[str]) -> set[str]:
        """Return `names`, and those of `states` that depend on them after any number of runs.

        results: the output of the body that becomes each state in the next run.
        """
        nodes, types = self.writer.forward, self.writer.types
        while True:
            reached = dependents(nodes, types, names)
            pairs = zip(states, results, strict=True)
            more = {s for s, y in pairs if y in reached and self.is_real(s)} - names
            if not more:
                return names
            names = names | more

    def is_real(self, name: str) -> bool:
        """Return True of a value of floating or unknown type."""
        return is_real(self.writer.sequences.get(name) or self.writer.types.get(name))

    def seed(self, name: str, like: str) -> str:
        """Return a new name for an input of the backward graph, with type and shape of `like`."""
        seed = self.writer.new_name(name)
        self.writer.declare_like(seed, like)
        return seed

    def sum(self, a: str, b: str) -> str:
        """Add the sum of two values, arrays or sequences; return its name."""
        name = f"{a}_sum"
        if a in self.writer.sequences:
            return sum_of_sequences(self.writer, (a, b), name)
        return self.writer.add("Add", (a, b), name)[0]

    def value(self, name: str) -> Value:
        """Return the declaration of a value."""
        return _value(self.writer, name, name)

    def graph(self, first: Sequence[Node], own: Sequence[str], outputs: Sequence[str]) -> Graph:
        """Return the backward graph: nodes `first`, then those of the body that `outputs` need.

        own: names of its inputs.
        """
        whole = self.writer.result()
        nodes = (*first, *whole.nodes)
        nodes = tuple(nodes[i] for i in places_of(nodes, outputs))
        read = {name for node in nodes for name in node.inputs} | {*outputs}
        read -= self._constants.keys()
        constants = {name: array for name, array in whole.constants.items() if name in read}
        inputs, results = (tuple(map(self.value, names)) for names in (own, outputs))
        return Graph(nodes, inputs, results, constants, whole.types, whole.shapes)

    def reads(self, outputs: Sequence[str]) -> set[str]:
        """Return the names of all values that these outputs are computed of, and the outputs."""
        nodes = self.writer.result().nodes
        read = {name for i in places_of(nodes, outputs) for name in nodes[i].inputs}
        return read | {*outputs}

    def with_states_of_runs(self, names: Sequence[str]) -> tuple[Graph, list[str]]:
        """Return the forward graph with inputs `names` as more outputs, and these outputs' names.

        A loop stacks them over its runs: so the backward loop gets the states of each run.
        """
        copies = [self.writer.new_name(f"{name}_before") for name in names]
        version = self.writer.version
        nodes = [
            Node("Identity", "", version, (name,), (copy,))
            for name, copy in zip(names, copies, strict=True)
        ]
        values = []
        for name, copy in zip(names, copies, strict=True):
            if name in self.writer.sequences:
                words = f"its gradient needs the sequence {cut(name)!r} of each run"
                raise ArgumentError(f"{words}: expected an array")
            values.append(self.value(name)._replace(name=copy))
        part = replace(
            self.part,
            nodes=(*self.part.nodes, *nodes),
            outputs=(*self.part.outputs, *values),
        )
        return part, copies


def _value(writer: Writer, like: str, name: str) -> Value:
    """Return the declaration of `name`, with type and shape of the value `like` of the writer."""
    for item in writer.graph.inputs:
        if item.name == like and item.is_optional:
            return item._replace(name=name)
    if like in writer.sequences:
        return Value(name, writer.sequences[like], None, is_sequence=True)
    known = writer.constants.get(like)
    shape = writer.shapes.get(like) if known is None else known.shape
    return Value(name, writer.types.get(like), shape)


def _run(
    site: Site, op_type: str, inputs: Sequence[str], likes: Sequence[str], **attributes: Any
) -> list[Term]:
    """Add a node `op_type` over values `inputs` that runs the graphs in `attributes`.

    Return its results. likes: for each result, the name of a value of its type and shape.
    """
    writer = site.writer
    node = with_captures(Node(op_type, "", writer.version, tuple(inputs), (), attributes))
    title = f"{site.node.name or site.node.outputs[0]}{SUFFIX}/{op_type}"
    names = writer.add(
        op_type, node.inputs, title, n_outputs=len(likes), attributes=node.attributes
    )
    for name, like in zip(names, likes, strict=True):
        writer.declare_like(name, like)
    return [Term(site, name) for name in names]


@gradient("If")
def if_(site: Site) -> Sequence[Term | None]:
    """An If of the same condition, whose branches compute the gradients of captured values.

    A value that one branch does not read has a gradient of zeros there.
    """
    condition, *captured = site.node.inputs
    wanted = [name for name, is_wanted in zip(captured, site.wanted[1:], strict=True) if is_wanted]
    bodies, gradients = {}, {}
    for name, part in parts_around(site.node).items():
        body = bodies[name] = _Body(site, part, ())
        pairs = zip(body.outputs, site.dys, strict=True)
        seeds = [(y, dy.name) for y, dy in pairs if dy is not None]
        gradients[name] = body.add_gradients(seeds, wanted)
    moved = [x for x in wanted if any(x in each for each in gradients.values())]
    if not moved:
        return []
    branches = {
        name: body.graph((), (), [own.get(x) or zeros_of(body.writer, x) for x in moved])
        for (name, body), own in zip(bodies.items(), gradients.values(), strict=True)
    }
    results = dict(zip(moved, _run(site, "If", [condition], moved, **branches), strict=True))
    return [None, *(results.get(name) for name in captured)]


@gradient("SequenceMap")
def sequence_map(site: Site) -> Sequence[Term | None]:
    """A SequenceMap whose body computes the gradients of one run.

    An input that is a sequence gets the sequence of them, one that all runs read gets their sum.
    """
    part, writer = parts_around(site.node)["body"], site.writer
    n_own = len(part.inputs) - part.n_captured
    outside = [*site.node.inputs[:n_own], *(item.name for item in part.inputs[n_own:])]
    own = [
        _element(item, writer.sequences[name])
        if name in writer.sequences
        else _value(writer, name, item.name)
        for item, name in zip(part.inputs[:n_own], outside, strict=False)
    ]
    body = _Body(site, part, own)
    pairs = [(y, dy) for y, dy in zip(body.outputs, site.dys, strict=True) if dy is not None]
    seeds = [body.seed(f"{y}{SUFFIX}", y) for y, _ in pairs]  # inputs: elements of the dys
    inside = [item.name for item in part.inputs]
    wanted = [name for name, is_wanted in zip(inside, site.wanted, strict=True) if is_wanted]
    gradients = body.add_gradients(
        [(y, seed) for (y, _), seed in zip(pairs, seeds, strict=True)], wanted
    )
    if not gradients:
        return []
    likes = [outside[inside.index(name)] for name in gradients]
    graph = body.graph((), [*inside[:n_own], *seeds], list(gradients.values()))
    inputs = [*outside[:n_own], *(dy.name for _, dy in pairs)]
    terms = _run(site, "SequenceMap", inputs, likes, body=graph)
    results = {
        name: term if like in writer.sequences else _sum_of_runs(site, term, like)
        for name, like, term in zip(gradients, likes, terms, strict=True)
    }
    return [results.get(name) for name in inside]


def _element(item: Value, dtype: Dtype | None) -> Value:
    """Return the declaration of a body's input, an element of a sequence of this dtype.

    Of its declared shape only the rank is taken, since elements may differ in extents.
    """
    shape = None if item.shape is None else (None,) * len(item.shape)
    return Value(item.name, item.dtype or dtype, shape)


def _sum_of_runs(site: Site, sequence: Term, like: str) -> Term:
    """Return the sum of a sequence's arrays, gradients of the value `like`."""
    site.writer.sequences[sequence.name] = site.writer.types.get(like)
    rows = site.op("ConcatFromSequence", sequence, axis=0, new_axis=1)
    return site.op("ReduceSum", rows, site.ints(0), keepdims=0)


# ---- graphs that run several times ---------------------------------------------------------------


class _Runs:
    """The states of a backward Loop or Scan: gradients of states, and sums over all runs.

    with_gradient: names in the body of the states that have a gradient; places: their indices.
    seeds: inputs of the backward body, their gradients behind a run. captured: captured values that
    have a gradient; sums: inputs of the backward body, their gradients summed so far. outputs: of
    the backward body, the new value of each of seeds and sums. others: gradient by name of
    `others`.
    """

    def __init__(
        self,
        site: Site,
        body: _Body,
        first: int,
        states: Sequence[str],
        others: Sequence[str] = (),
    ) -> None:
        """Find which values have a gradient.

        first: the index of the first state among the node's inputs. states: their names in the
        body. others: names in the body of inputs whose gradient each run gives by itself.
        """
        self.site, self.body = site, body
        self._first, self._others = first, others
        n, node = len(states), site.node
        first_state = 1 if node.op_type == "Loop" else 0  # a Loop's body gives the condition first
        results = body.outputs[first_state : first_state + n]
        start = len(node.inputs) - body.part.n_captured
        initial = site.wanted[first : first + n]
        pairs = zip(node.inputs[start:], site.wanted[start:], strict=True)
        self.captured = [name for name, is_wanted in pairs if is_wanted]
        # States have a gradient if their start needs one, or if they depend on a value that does.
        starts = {s for s, is_wanted in zip(states, initial, strict=True) if is_wanted}
        names = body.moving(starts.union(self.captured, others), states, results)
        self.places = [k for k, name in enumerate(states) if name in names]
        self.with_gradient = [states[k] for k in self.places]
        self.seeds = [body.seed(f"{name}{SUFFIX}", name) for name in self.with_gradient]
        # Pairs (output of the body that becomes a state, its gradient), with which a run begins.
        self.seeds_of_results = [
            (results[k], seed) for k, seed in zip(self.places, self.seeds, strict=True)
        ]

    def add_gradients(self, seeds: Sequence[tuple[str, str]]) -> None:
        """Add the gradients of states, captured values and others to the body.

        seeds: (output of the body that is stacked, its gradient in this run) by names.
        """
        body = self.body
        names = [*self.with_gradient, *self.captured, *self._others]
        gradients = body.add_gradients([*self.seeds_of_results, *seeds], names)
        self.captured = [name for name in self.captured if name in gradients]
        self.sums = [body.seed(f"{name}{SUFFIX}_sum", name) for name in self.captured]
        pairs = zip(self.with_gradient, self.seeds, strict=True)
        self.outputs = [gradients.get(s) or zeros_of(body.writer, seed) for s, seed in pairs]
        rows = zip(self.captured, self.sums, strict=True)
        self.outputs += [body.sum(total, gradients[name]) for name, total in rows]
        self.others = {name: gradients[name] for name in self._others if name in gradients}

    @property
    def inputs(self) -> list[str]:
        """The backward body's inputs that are states."""
        return [*self.seeds, *self.sums]

    def initial(self) -> list[str]:
        """Return the names of the backward states' first values.

        They are the gradients of the node's last states (zeros without one), and zeros for sums.
        """
        finals = [self.site.extra_output(k) for k in self.places]
        dys = [self.site.dys[k] if k < len(self.site.dys) else None for k in self.places]
        writer = self.site.writer
        pairs = zip(dys, finals, strict=True)
        starts = [zeros_of(writer, y.name) if dy is None else dy.name for dy, y in pairs]
        return [*starts, *(zeros_of(writer, name) for name in self.captured)]

    @property
    def likes(self) -> list[str]:
        """Values of the types and shapes of the backward node's last states."""
        return [*(self.site.node.inputs[self._first + k] for k in self.places), *self.captured]

    def results(self, terms: Sequence[Term], others: Mapping[int, Term]) -> list[Term | None]:
        """Return the gradient of each of the node's inputs, None without one.

        terms: the backward node's last states. others: gradients of other inputs by index.
        """
        n, names = len(self.places), self.site.node.inputs
        states = dict(zip((self._first + k for k in self.places), terms, strict=False))
        sums = dict(zip(self.captured, terms[n:], strict=False))
        start = len(names) - self.body.part.n_captured
        known = {**states, **others}
        return [sums.get(x) if k >= start else known.get(k) for k, x in enumerate(names)]


@gradient("Loop")
def loop(site: Site) -> Sequence[Term | None]:
    """A Loop over the forward loop's runs, from the last to the first (see the module).

    It counts j = 0, 1, ...; its body first computes i = n - 1 - j (n runs), and takes the states of
    run i from stacks that the forward loop gives as more outputs.
    """
    part = parts_around(site.node)["body"]
    n_own = len(part.inputs) - part.n_captured
    step, condition, *states = [item.name for item in part.inputs[:n_own]]
    own = [Value(step, INT64, ()), Value(condition, BOOL, ())]
    own += [
        _state(item, _value(site.writer, name, name))
        for item, name in zip(part.inputs[2:n_own], site.node.inputs[2:n_own], strict=True)
    ]
    body = _Body(site, part, own)
    runs = _Runs(site, body, 2, states)
    scans = []  # each stacked output of the body, and its gradient in run `step`: dy[step]
    for y, dy in zip(body.outputs[n_own - 1 :], site.dys[n_own - 2 :], strict=False):
        if dy is not None:
            scans.append((y, body.writer.add("Gather", (dy.name, step), dy.name)[0]))
    runs.add_gradients(scans)
    if not runs.outputs:
        return []
    needed = body.reads(runs.outputs)
    stored = [name for name in states if name in needed]
    n_runs, stacks = _store(site, body, stored, step)
    last = site.op("Sub", n_runs, site.constant(np.array(1, INT64)))
    body.writer.constants[condition] = np.array(True)
    back, go = (body.writer.new_name(name) for name in ("back", "go"))
    version = site.writer.version
    # The body's input `back` is j; `step` is i = n - 1 - j, and stored states are those of run i.
    first = [Node("Sub", "", version, (last.name, back), (step,))]
    first += [
        Node("Gather", "", version, (stack, step), (name,))
        for name, stack in zip(stored, stacks, strict=False)
    ]
    body.writer.types |= {back: INT64, go: BOOL}
    body.writer.shapes |= {back: (), go: ()}
    graph = body.graph(first, [back, go, *runs.inputs], [go, *runs.outputs])
    inputs = [n_runs.name, "", *runs.initial()]
    return runs.results(_run(site, "Loop", inputs, runs.likes, body=graph), {})


def _state(item: Value, initial: Value) -> Value:
    """Return the declaration of a loop's state by `item`, that in the body, and its first value's.

    initial: the first value's declaration. Extents may change from run to run: one is known only
    where both say the same.
    """
    if initial.is_sequence:
        return Value(item.name, initial.dtype or item.dtype, None, is_sequence=True)
    shape = initial.shape
    if shape is not None:
        said = item.shape or (None,) * len(shape)
        shape = tuple(n if n == m else None for n, m in zip(shape, said, strict=False))
    return Value(item.name, item.dtype or initial.dtype, shape)


def _store(site: Site, body: _Body, states: Sequence[str], step: str) -> tuple[Term, list[str]]:
    """Let the forward Loop stack `states` of each run as more outputs.

    Return the number of runs, an int64 scalar (the length of a stack), and the stacks' names.
    step: the body's input that counts runs, stacked if there is nothing else to measure.
    """
    n_states = len(body.part.inputs) - body.part.n_captured - 2
    n_scans = len(body.outputs) - 1 - n_states
    known = [y for y in site.outputs[n_states:] if y is not None]
    stored = [*states, *(() if known or states else (step,))]
    graph, _ = body.with_states_of_runs(stored)
    outputs = [*site.node.outputs, *[""] * (n_states + n_scans - len(site.node.outputs))]
    stacks = [site.writer.new_name(f"{name}_runs") for name in stored]
    for name, stack in zip(stored, stacks, strict=True):
        site.writer.types[stack] = body.writer.types[name]
    attributes = {**site.node.attributes, "body": graph}
    site.replace_node(outputs=(*outputs, *stacks), attributes=attributes)
    like = known[0] if known else Term(site, stacks[0])
    shape = site.op("Shape", like, dtype=INT64)
    return site.op("Gather", shape, site.constant(np.array(0, INT64))), stacks


class _ScanFacts(NamedTuple):
    """How a Scan goes over its arrays and stacks its results."""

    n_states: int
    in_axes: Sequence[int]  # of each scanned array (inputs behind the states)
    in_ways: Sequence[int]  # 1: from its end
    out_axes: Sequence[int]  # of each stack (outputs behind the states)
    out_ways: Sequence[int]  # 1: filled from its end


class _Scanned(NamedTuple):
    """An array that the backward scan goes over."""

    name: str  # of its slices, in the body
    array: str
    axis: int
    way: int  # 1: backwards


def _scan_facts(site: Site, part: Graph) -> _ScanFacts:
    """Return the axes and directions of a Scan whose body is `part`, 0 where left out."""
    n_scans = site.attribute("num_scan_inputs", 0)
    n_states = len(part.inputs) - part.n_captured - n_scans
    n_stacks = len(site.node.outputs) - n_states
    return _ScanFacts(
        n_states,
        site.attribute("scan_input_axes", ()) or (0,) * n_scans,
        site.attribute("scan_input_directions", ()) or (0,) * n_scans,
        site.attribute("scan_output_axes", ()) or (0,) * n_stacks,
        site.attribute("scan_output_directions", ()) or (0,) * n_stacks,
    )


@gradient("Scan")
def scan(site: Site) -> Sequence[Term | None]:
    """A Scan in the other direction, whose body computes the gradients of one run.

    It goes over the gradients of the stacks, the scanned arrays, and stacks of the states of each
    run, which the forward scan gives as more outputs.
    """
    node, part = site.node, parts_around(site.node)["body"]
    facts = _scan_facts(site, part)
    n_states, in_axes = facts.n_states, facts.in_axes
    body_inputs = _scan_inputs(site, part, facts)
    body, names = _Body(site, part, body_inputs), [item.name for item in body_inputs]
    states, xs = names[:n_states], names[n_states:]
    wanted = [x for k, x in enumerate(xs) if site.wanted[n_states + k]]
    runs = _Runs(site, body, 0, states, wanted)
    scanned: list[_Scanned] = []  # what the backward scan goes over, the other way round
    seeds = []
    for k, dy in enumerate(site.dys[n_states:]):
        if dy is not None:
            y = body.outputs[n_states + k]
            seed = body.seed(f"{y}{SUFFIX}", y)
            seeds.append((y, seed))
            scanned.append(_Scanned(seed, dy.name, facts.out_axes[k], 1 - facts.out_ways[k]))
    runs.add_gradients(seeds)
    results = list(runs.others.values())
    if not (runs.outputs or results):
        return []
    needed = body.reads([*runs.outputs, *results])  # of states and slices, only these are stored
    scanned += _store_states(site, body, [name for name in states if name in needed], facts)
    scanned += [
        _Scanned(x, node.inputs[n_states + k], in_axes[k], 1 - facts.in_ways[k])
        for k, x in enumerate(xs)
        if x in needed or not scanned
    ]
    places = [k for k, x in enumerate(xs) if x in runs.others]  # scanned arrays with a gradient
    terms = _run(
        site,
        "Scan",
        [*runs.initial(), *(each.array for each in scanned)],
        [*runs.likes, *(node.inputs[n_states + k] for k in places)],
        body=body.graph(
            (), [*runs.inputs, *(each.name for each in scanned)], [*runs.outputs, *results]
        ),
        num_scan_inputs=len(scanned),
        scan_input_axes=tuple(each.axis for each in scanned),
        scan_input_directions=tuple(each.way for each in scanned),
        scan_output_axes=tuple(in_axes[k] for k in places),
        scan_output_directions=tuple(1 - facts.in_ways[k] for k in places),
    )
    n = len(runs.likes)
    others = {n_states + k: term for k, term in zip(places, terms[n:], strict=True)}
    return runs.results(terms[:n], others)


def _scan_inputs(site: Site, part: Graph, facts: _ScanFacts) -> list[Value]:
    """Return the declarations of the body's states, then of the slices that it scans.

    part: the body. facts: axes of the scanned arrays, which the slices lack.
    """
    n = facts.n_states + len(facts.in_axes)
    items = zip(part.inputs[:n], site.node.inputs[:n], strict=True)
    rows = [(item, _value(site.writer, name, name)) for item, name in items]
    shapes = [known.shape for _, known in rows[: facts.n_states]]
    shapes += [
        _without_axis(known.shape, axis)
        for (_, known), axis in zip(rows[facts.n_states :], facts.in_axes, strict=True)
    ]
    return [
        Value(item.name, item.dtype or known.dtype, shape)
        for (item, known), shape in zip(rows, shapes, strict=True)
    ]


def _store_states(
    site: Site, body: _Body, states: Sequence[str], facts: _ScanFacts
) -> list[_Scanned]:
    """Let the forward Scan stack these states of each run, by more outputs than its `facts` have.

    Return the stacks as arrays for the backward scan, which reads them from the end.
    """
    node = site.node
    graph, _ = body.with_states_of_runs(states)
    stacks = [site.writer.new_name(f"{name}_runs") for name in states]
    for name, stack in zip(states, stacks, strict=True):
        site.writer.types[stack] = body.writer.types[name]
    new: dict[str, Any] = {
        "body": graph,
        "scan_output_axes": (*facts.out_axes, *(0,) * len(states)),
        "scan_output_directions": (*facts.out_ways, *(0,) * len(states)),
    }
    site.replace_node(outputs=(*node.outputs, *stacks), attributes={**node.attributes, **new})
    return [_Scanned(name, stack, 0, 1) for name, stack in zip(states, stacks, strict=True)]


def _without_axis(shape: Sequence[Any] | None, axis: int) -> tuple[Any, ...] | None:
    if shape is None:
        return None
    axis %= len(shape)
    return (*shape[:axis], *shape[axis + 1 :])
