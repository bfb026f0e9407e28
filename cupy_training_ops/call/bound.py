# SPDX-License-Identifier: MIT
"""Bound calls: checked once, then only launched; inputs may stay open, values may change.

Tensors on a GPU are known again by what can be read of all of them at once, and by addresses:
a call over hundreds of new ones costs little beside its launches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self

import numpy as np

from ..errors import refuse
from . import checks
from .arguments import adopt_input, adopt_out, by_declared_names
from .convert import is_number
from .guards import Addresses, AtAddresses, Seen, Unchanged, as_list
from .interop import NONE_LENT, Lent, are_native
from .keys import reader
from .overlap import Beside
from .prepared import Arguments, Arrays, grouped
from .protocol import Operator
from .run import NO_VALUES, Call, Placed

__all__ = ["BoundCall", "LendingCall", "OpenCall", "bind", "opened"]


def bind(
    op: Operator, inputs: Arguments, out: Arguments, outputs: Outputs, workspace: object
) -> BoundCall | OpenCall:
    """The call with these arguments; `...` stands for an input that stays open."""
    names = [item.name for item, value in zip(op.inputs, inputs, strict=False) if value is ...]
    if names:
        return OpenCall(op, inputs, out, outputs, workspace)
    lent = Lent(op.inputs, inputs, out, natively=op.knows_tensors, detaches=op.declaration.detaches)
    with lent.stream():
        return _bound(op, inputs, out, outputs, workspace, lent)


def _bound(
    op: Operator,
    inputs: Arguments,
    out: Arguments,
    outputs: Outputs,
    workspace: object,
    lent: Lent,
) -> BoundCall:
    """A call whose inputs are all given."""
    call, taken, given = op.prepared_call(inputs, out, outputs, lent)
    if call.makes_arrays:  # once; then they are as if the caller had given them
        every, given, arrays = call.split(taken, given)
        made = call.completed(arrays, given, call.values(every))
        kept = tuple(
            None if r.value is not None or _replaces(array, r.alias, arrays) else array
            for r, array in zip(call.prepared.results, made, strict=True)
        )
        if lent:
            lent.keep(kept)
        out = grouped(kept, call.prepared.counts) if call.prepared.groups_outputs else kept
        call, taken, given = op.prepared_call(taken, out, outputs, lent)
    if lent:
        return LendingCall(op, call, taken, given, workspace, lent)
    return BoundCall(op, call, taken, given, workspace, lent)


def _replaces(array: object, alias: int | None, arrays: Arrays) -> bool:
    """Return True if an output is the very input that it replaces."""
    return alias is not None and array is arrays[alias]


class BoundCall(AtAddresses):
    """`op.bound(...)`: call it with the values that change, by name."""

    def __init__(
        self,
        op: Operator,
        call: Call,
        inputs: Arguments,
        out: Arguments,
        workspace: object,
        lent: Lent,
    ) -> None:
        self._op = op
        self.call = call
        self._workspace = workspace
        self._inputs, self._out, self._arrays = call.split(inputs, out)
        if call.records:
            call.refuse_gradients(self._arrays + self._out)
        self.placed = call.place(self._arrays, self._out)
        self._unchanged = Unchanged(call, self._arrays + self._out, lent)
        self._places = {op.inputs[place].name: place for place in call.prepared.changing}
        self._results: Arrays | None = None  # where they are the same at each call
        self.answer: Any = None  # what each call returns then
        fixed = call.repeats and all(r.value is None for r in call.prepared.results)
        if fixed and call.prepared.results:
            self._results = call.completed(self._arrays, self._out, NO_VALUES)
            self.answer = self._results[0] if call.single_output else call.returned(self._results)

    def __call__(self, **values: object) -> Any:
        """Launch, with these values instead of those that were bound; returns what a call does."""
        inputs, call = self._inputs, self.call
        self._unchanged.refuse_others()
        if values:
            inputs = with_values(self._op, inputs, self._places, values)
        if self._results is not None:
            own = call.values(inputs) if call.changing else NO_VALUES
            arrays, results, workspace = self._arrays, self._results, self._workspace
            if call.has_checks or workspace is not None:
                workspace, own = call.check(inputs, arrays, results, workspace, own)
            call.run(inputs, arrays, results, workspace, own, self.placed)
            if call.has_tensors and call.writes:
                call.raise_versions(arrays, self._out)
            return self.answer
        return call.finish(inputs, self._arrays, self._out, self._workspace, self.placed)


class LendingCall(BoundCall):
    """A bound call over arrays of other libraries."""

    def __init__(
        self,
        op: Operator,
        call: Call,
        inputs: Arguments,
        out: Arguments,
        workspace: object,
        lent: Lent,
    ) -> None:
        super().__init__(op, call, inputs, out, workspace, lent)
        self._lent = lent

    def __call__(self, **values: object) -> Any:
        """Launch as a bound call does; the caller's own objects come back."""
        if not self._lent.detaches:
            self._unchanged.refuse_gradients()
        with self._lent.stream():
            result = super().__call__(**values)
            if not self.call.has_tensors:
                self._lent.raise_versions(self.call.writes, self._arrays + self._out)
            return self._lent.returned(result)


def opened(bound: BoundCall | OpenCall) -> OpenCall:
    """A bound call whose inputs are known to be open, for type checkers."""
    assert isinstance(bound, OpenCall)
    return bound


_MAX_OPENED = 64
_MAX_TABLES = 8  # of lists of addresses: an allocator gives the same memory again


class OpenCall(AtAddresses):
    """`op.bound(...)` with inputs left open: they are given, and checked, at each call."""

    def __init__(
        self, op: Operator, inputs: Arguments, out: Arguments, outputs: Outputs, workspace: object
    ) -> None:
        checks.count(op.name, op.inputs, len(inputs))
        self._given = (*inputs, *(None,) * (len(op.inputs) - len(inputs)))
        self._op, self._given_out = op, out
        self._outputs, self._workspace = outputs, workspace
        places = [place for place, value in enumerate(self._given) if value is ...]
        self._open = {op.inputs[place].name: place for place in places}
        self._closed = tuple([None if value is ... else value for value in self._given])
        self._ways: dict[bool, _Way] = {}
        self._watches = True
        self._way(op.knows_tensors and are_native(op.inputs, self._closed, out))

    def __call__(self, **given: object) -> Any:
        """Launch with these arrays for the open inputs, and values that change, by name."""
        values, given = self._values(given)
        again = self._again(values)
        if again is not None:
            opened, found = again
            return opened.launch(values, given, found)
        every = self._every(values)
        way, lent = self._lent(every, self._given_out)
        with lent.stream():
            opened, taken = way.opened(every, lent)
            opened.refuse_others()
            return lent.returned(opened.launch(taken, given, lent=lent))

    def checked(self, **given: object) -> CheckedCall:
        """The call with these arrays, checked and not launched yet.

        It may be made again and again, as long as they are the same.
        """
        values, given = self._values(given)
        again = self._again(values)
        if again is not None:
            opened, found = again
            return opened.checked(values, given, found)
        every = self._every(values)
        way, lent = self._lent(every, ())
        opened, taken = way.opened(every, lent)
        opened.refuse_others()
        return opened.checked(taken, given)

    @property
    def is_native(self) -> bool:
        """Return True if bound arrays are tensors that are taken by their metadata."""
        return True in self._ways

    def trusting(self) -> Self:
        """The same, whose caller looks whether bound tensors are what they were."""
        self._watches = False
        return self

    def _again(self, values: Sequence[Any]) -> tuple[_Opened, Addresses] | None:
        """The last kind of call over tensors, if this is another of it, and where they are."""
        way = self._ways.get(True)
        last = None if way is None else way.last
        found = None if last is None else last.found(values)
        if last is None or found is None:
            return None
        if self._watches:
            last.refuse_others()
        return last, found

    def _values(self, given: dict[str, object]) -> tuple[list[object], dict[str, object]]:
        """Split arguments into those for open inputs, in their order, and the rest."""
        others = self._op.declaration.other_inputs
        given = by_declared_names(self._op.name, others, given) if others else given
        missing = self._open.keys() - given.keys()
        if missing:
            refuse(self._op.name, min(missing), "an argument, because it was left open", "none")
        return [given.pop(name) for name in self._open], given

    def _every(self, values: Sequence[object]) -> Arguments:
        """All inputs."""
        every = list(self._closed)
        for place, value in zip(self._open.values(), values, strict=True):
            every[place] = value
        return tuple(every)

    def _lent(self, every: Arguments, out: Arguments) -> tuple[_Way, Lent]:
        """How these inputs are taken, and what is lent for this call."""
        op = self._op
        natively = op.knows_tensors and are_native(op.inputs, every, self._given_out)
        way = self._way(natively)
        lent = Lent(
            op.inputs, every, out, way.lent, natively=natively, detaches=op.declaration.detaches
        )
        return way, lent

    def _way(self, natively: bool) -> _Way:
        way = self._ways.get(natively)
        if way is None:
            op, out = self._op, self._given_out
            lent = Lent(
                op.inputs, self._closed, out, natively=natively, detaches=op.declaration.detaches
            )
            places = tuple(self._open.values())
            way = _Way(op, self._closed, out, self._outputs, self._workspace, places, lent)
            self._ways[natively] = way
        return way


class _Way:
    """The inputs that are not open in one form: tensors as they are, or as arrays."""

    def __init__(
        self,
        op: Operator,
        closed: Arguments,
        out: Arguments,
        outputs: Outputs,
        workspace: object,
        places: Sequence[int],
        lent: Lent,
    ) -> None:
        self.lent = lent
        self._op, self._outputs, self._workspace = op, outputs, workspace
        pairs = zip(op.inputs, closed, strict=True)
        self._inputs = tuple([adopt_input(op.name, item, v, lent) for item, v in pairs])
        self._out = tuple([adopt_out(op.name, value, lent) for value in out])
        self._places = places
        self._readers = [reader(op.inputs[place]) for place in places]
        self._calls: dict[object, _Opened] = {}
        self._last: tuple[object, _Opened] | None = None

    @property
    def last(self) -> _Opened | None:
        """The last kind of call."""
        return None if self._last is None else self._last[1]

    def opened(self, every: Sequence[object], lent: Lent) -> tuple[_Opened, Sequence[Any]]:
        """The kind of call, and what is given for the open inputs in forms that have a backend."""
        op = self._op
        taken = [adopt_input(op.name, op.inputs[p], every[p], lent) for p in self._places]
        pairs = zip(self._readers, taken, strict=True)
        key = tuple([None if value is None else read(value) for read, value in pairs])
        last = self._last
        if last is None or last[0] != key:  # sooner than a hash of it
            opened = self._calls.get(key) or self._made(key, taken, lent)
            self._last = last = key, opened
        last[1].refuse_unwritable(taken, lent)
        return last[1], taken

    def _made(self, key: object, taken: Sequence[Any], lent: Lent) -> _Opened:
        op, given = self._op, list(self._inputs)
        for place, value in zip(self._places, taken, strict=True):
            given[place] = value
        call, inputs, out = op.prepared_call(tuple(given), self._out, self._outputs, lent)
        opened = _Opened(op, call, inputs, out, self._workspace, self._places, self.lent)
        if len(self._calls) >= _MAX_OPENED:
            self._calls.clear()
        self._calls[key] = opened
        return opened


class _Opened:
    """One kind of call with open inputs; the addresses of all other arrays are known."""

    def __init__(
        self,
        op: Operator,
        call: Call,
        inputs: Arguments,
        out: Arguments,
        workspace: object,
        places: Sequence[int],
        lent: Lent,
    ) -> None:
        self.call = call
        self._op, self._workspace = op, workspace
        self._places, self._out = places, out
        self._inputs = tuple([None if p in places else v for p, v in enumerate(inputs)])
        _, flat, arrays = call.split(inputs, out)
        self._arrays, at = _opened_arrays(call, inputs, places)
        closed = list(arrays)
        for i in at:
            closed[i] = None
        self._unchanged = Unchanged(call, (*closed, *flat), lent)
        given = (*closed, *flat) if call.has_out else closed
        self._known = np.array(call.backend.pointers(given), np.int64)
        self._at = np.array(at, np.intp)
        self._overlap = None if call.overlap is None else Beside(call.overlap, at)
        self._changing = {op.inputs[place].name: place for place in call.prepared.changing}
        self._kept = None if workspace is not None else kept_of(call, inputs, out, places)
        self._seen = Seen(op.inputs, call, inputs, places) if call.has_tensors else None
        self._made: dict[tuple[int, ...], Placed | None] = {}

    def refuse_others(self) -> None:
        """Refuse arrays that are not open and became others, or would have gradients."""
        self._unchanged.refuse_others()
        if not self._op.declaration.detaches:
            self._unchanged.refuse_gradients()

    def refuse_unwritable(self, given: Sequence[Any], lent: Lent) -> None:
        """Refuse what is given for an input that is written and cannot be."""
        if lent.has_unwritable:
            _, out, arrays = self.call.split(self._every(given), self._out)
            lent.refuse_unwritable(self.call.prepared, (*arrays, *out))

    def found(self, values: Sequence[Any]) -> Addresses | None:
        """Where open inputs are, if a call with them, as a caller gives them, is of this kind.

        Of a call over tensors alone; others have to be looked at one by one.
        """
        return None if self._seen is None else self._seen.found(values)

    def launch(
        self,
        given: Sequence[Any],
        values: Mapping[str, object],
        found: Addresses | None = None,
        lent: Lent = NONE_LENT,
    ) -> Any:
        """The call with these arguments, some of which stand for what others lent."""
        call = self.call
        inputs, placed = self._checked(given, values, found)
        inputs, out, arrays = call.split(inputs, self._out)
        result = call.finish(inputs, arrays, out, self._workspace, placed)
        if lent and not call.has_tensors:
            lent.raise_versions(call.writes, arrays + out)
        return result

    def checked(
        self, given: Sequence[Any], values: Mapping[str, object], found: Addresses | None = None
    ) -> CheckedCall:
        """The same, not launched yet."""
        call = self.call
        inputs, placed = self._checked(given, values, found)
        if self._kept is None or placed is None:
            held = held_of(call, inputs, self._out)
        else:
            changing = call.prepared.changing
            kept = (inputs[p] if p in changing else v for p, v in enumerate(self._kept[0]))
            held = (tuple(kept), *self._kept[1:])
        return CheckedCall(self._op, call, held, self._workspace, placed)

    def _checked(
        self, given: Sequence[Any], values: Mapping[str, object], found: Addresses | None
    ) -> tuple[Arguments, Placed | None]:
        """All inputs; the tables of arrays none of which is written and another's too."""
        call, inputs = self.call, self._every(given)
        if values:
            inputs = with_values(self._op, inputs, self._changing, values)
        if found is None:
            lists = (as_list(inputs[place]) for place in self._arrays)
            found = [at for arrays in lists for at in call.backend.pointers(arrays)]
        return inputs, self._place(found)

    def _every(self, given: Sequence[Any]) -> Arguments:
        """All inputs, with these for those that are open."""
        every = list(self._inputs)
        for place, value in zip(self._places, given, strict=True):
            every[place] = value
        return tuple(every)

    def _place(self, found: Addresses) -> Placed | None:
        """With the addresses of what is open; refused where memory is shared."""
        key = tuple(found)
        if key not in self._made:
            addresses = self._known.copy()
            addresses[self._at] = found
            if self._overlap is not None:
                self._overlap.refuse(addresses)
            if len(self._made) >= _MAX_TABLES:
                self._made.clear()
            self._made[key] = self.call.placed_at(addresses)
        return self._made[key]


def _opened_arrays(
    call: Call, inputs: Arguments, places: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Which of the open inputs are arrays, and where these are among all arrays."""
    opened, at, n = list[int](), list[int](), 0
    for place, _ in call.array_places:
        end = n + len(as_list(inputs[place]))
        if place in places and inputs[place] is not None:
            opened.append(place)
            at += range(n, end)
        n = end
    return opened, at


Held = tuple[Arguments, Arrays, Arrays]  # inputs, their arrays one by one, results


class CheckedCall(AtAddresses):
    """A call with arrays that were checked; each time with new values, and without results.

    It keeps no array that was open where tables have its address: such arrays must be there, the
    same ones, at each launch.
    """

    def __init__(
        self,
        op: Operator,
        call: Call,
        held: Held,
        workspace: object,
        placed: Placed | None,
    ) -> None:
        self._op, self._call = op, call
        self._inputs, self._arrays, self._results = held
        self._workspace, self._placed = workspace, placed
        self._places = {op.inputs[place].name: place for place in call.changing}

    @property
    def over_tensors(self) -> bool:
        """Return True if arrays are tensors: the call runs on PyTorch's current stream."""
        return self._call.has_tensors

    @property
    def changing(self) -> Collection[str]:
        """The names of what is new each time."""
        return self._places

    def __call__(self, **values: object) -> None:
        """Launch, with these values instead of those before."""
        self.computed(**values)()

    def computed(self, **values: object) -> Callable[[], object]:
        """All that comes before the first write, and what writes.

        On the host that is one call of C code, which no handler of a signal interrupts.
        """
        call, inputs = self._call, self._inputs
        if values:
            inputs = with_values(self._op, inputs, self._places, values)
        own, arrays, results = call.values(inputs), self._arrays, self._results
        workspace: Any = self._workspace
        if call.has_checks or workspace is not None:
            workspace, own = call.check(inputs, arrays, results, workspace, own)
        return call.computed(inputs, arrays, results, workspace, own, self._placed)


def held_of(call: Call, inputs: Arguments, out: Arguments) -> Held:
    inputs, out, arrays = call.split(inputs, out)
    return inputs, arrays, call.completed(arrays, out, call.values(inputs))


def kept_of(call: Call, inputs: Arguments, out: Arguments, opened: Sequence[int]) -> Held | None:
    """The same without what is open; None where that is needed beside its address."""
    if call.taken is None or call.makes_arrays or call.checks or call.check_numbers:
        return None
    values = call.prepared.changing
    blank = tuple(
        v if p not in opened or p in values else [None] * len(v) if isinstance(v, tuple) else None
        for p, v in enumerate(inputs)
    )
    full, kept = held_of(call, inputs, out), held_of(call, blank, out)
    every, others = full[1] + full[2], kept[1] + kept[2]
    return kept if all(every[place] is others[place] for place in call.taken) else None


Outputs = Sequence[str] | None


_NOTHING = {True: NONE_LENT, False: Lent((), (), (), detaches=False)}


def with_values(
    op: Operator, inputs: Arguments, places: Mapping[str, int], values: Mapping[str, object]
) -> Arguments:
    """The inputs with the values of this call in their places."""
    taken: list[Any] = list(inputs)
    if op.declaration.other_inputs:
        values = by_declared_names(op.name, op.declaration.other_inputs, values)
    for name, value in values.items():
        if name not in places:
            refuse(op.name, name, f"a name among {sorted(places)}, which may change", "another")
        item = op.inputs[places[name]]
        if value is None or (item.memory == "either" and not is_number(value)):
            refuse(op.name, name, "a number, as was bound", type(value).__name__)
        taken[places[name]] = adopt_input(op.name, item, value, _NOTHING[op.declaration.detaches])
    return tuple(taken)
