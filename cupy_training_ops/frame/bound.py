# SPDX-License-Identifier: MIT
"""Bound calls: checked once, then only launched; inputs may stay open, values may change."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..backend import Array
from ..errors import refuse
from . import checks
from .arrays import adopt_input, adopt_out
from .call import NO_VALUES, Call, Tables
from .convert import is_number
from .foreign import NONE_LENT, Lent
from .keys import reader
from .operator import Operator
from .prepared import Arguments, Arrays, grouped
from .renamed import named
from .unchanged import AtAddresses, Unchanged

Outputs = Sequence[str] | None
Prepare = tuple[Call, Arguments, Arguments]


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
        every, given, arrays = call.taken_apart(taken, given)
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
    return BoundCall(op, call, taken, given, workspace)


def _replaces(array: object, alias: int | None, arrays: Arrays) -> bool:
    """Whether an output is the very input that it replaces."""
    return alias is not None and array is arrays[alias]


class BoundCall(AtAddresses):
    """`op.bound(...)`: call it with the values that change, by name."""

    def __init__(
        self, op: Operator, call: Call, inputs: Arguments, out: Arguments, workspace: object
    ) -> None:
        self._op = op
        self._call = call
        self._workspace = workspace
        self._inputs, self._out, self._arrays = call.taken_apart(inputs, out)
        if call.records:
            call.refuse_gradients(self._arrays + self._out)
        self._tables = call.checked_tables(self._arrays, self._out)
        self._unchanged = Unchanged(call, self._arrays + self._out)
        self._places = {op.inputs[place].name: place for place in call.prepared.changing}
        self._results: Arrays | None = None  # where they are the same at each call
        fixed = call.repeats and all(r.value is None for r in call.prepared.results)
        if fixed and call.prepared.results:
            self._results = call.completed(self._arrays, self._out, NO_VALUES)
            self._answer = self._results[0] if call.single_output else call.returned(self._results)

    def __call__(self, **values: object) -> Any:
        """Launch, with these values instead of those that were bound; returns what a call does."""
        inputs, call = self._inputs, self._call
        self._unchanged.refuse_others()
        if values:
            inputs = _with_values(self._op, inputs, self._places, values)
        if self._results is not None:
            own = call.values(inputs) if call.changing else NO_VALUES
            arrays, workspace, tables = self._arrays, self._workspace, self._tables
            call.execute(inputs, arrays, self._results, workspace, own, tables)
            return self._answer
        return call.finish(inputs, self._arrays, self._out, self._workspace, self._tables)


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
        super().__init__(op, call, inputs, out, workspace)
        self._lent = lent

    def __call__(self, **values: object) -> Any:
        """Launch as a bound call does; the caller's own objects come back."""
        with self._lent.stream():
            return self._lent.returned(super().__call__(**values))


class OpenCall(AtAddresses):
    """`op.bound(...)` with inputs left open: they are given, and checked, at each call."""

    def __init__(
        self, op: Operator, inputs: Arguments, out: Arguments, outputs: Outputs, workspace: object
    ) -> None:
        checks.count(op.name, op.inputs, len(inputs))
        self._given = (*inputs, *(None,) * (len(op.inputs) - len(inputs)))
        self._lent = Lent(op.inputs, self._given, out, detaches=op.declaration.detaches)
        self._op = op
        self._inputs = tuple(
            v if v is ... else adopt_input(op.name, item, v, self._lent)
            for item, v in zip(op.inputs, self._given, strict=True)
        )
        self._given_out = out
        self._out = tuple([adopt_out(op.name, value, self._lent) for value in out])
        self._outputs, self._workspace = outputs, workspace
        self._open = {item.name: i for i, item in enumerate(op.inputs) if self._inputs[i] is ...}
        self._readers = [reader(op.inputs[place]) for place in self._open.values()]
        self._calls: dict[object, _Opened] = {}
        self._last: tuple[object, _Opened] | None = None

    def __call__(self, **given: object) -> Any:
        """Launch with these arrays for the open inputs, and values that change, by name."""
        given = self._by_names(given)
        every = self._every(given)
        lent = Lent(
            self._op.inputs,
            every,
            self._given_out,
            self._lent,
            detaches=self._op.declaration.detaches,
        )
        with lent.stream():
            opened, inputs = self._with(every, lent)
            return lent.returned(opened.launch(inputs, given))

    def checked(self, **given: object) -> CheckedCall:
        """The call with these arrays, checked and not launched yet.

        It may be made again and again, as long as they are the same.
        """
        given = self._by_names(given)
        every = self._every(given)
        lent = Lent(self._op.inputs, every, (), self._lent, detaches=self._op.declaration.detaches)
        opened, inputs = self._with(every, lent)
        return opened.checked(inputs, given)

    def _by_names(self, given: dict[str, object]) -> dict[str, object]:
        others = self._op.declaration.other_inputs
        return named(self._op.name, others, given) if others else given

    def _every(self, given: dict[str, object]) -> Sequence[object]:
        """All inputs, the open ones taken out of what is given."""
        missing = self._open.keys() - given.keys()
        if missing:
            refuse(self._op.name, min(missing), "an argument, because it was left open", "none")
        every = list(self._given)
        for name, place in self._open.items():
            every[place] = given.pop(name)
        return every

    def _with(self, every: Sequence[object], lent: Lent) -> tuple[_Opened, Arguments]:
        """The kind of call, and all inputs in forms that have a backend."""
        inputs = list(self._inputs)
        for place in self._open.values():
            item = self._op.inputs[place]
            inputs[place] = adopt_input(self._op.name, item, every[place], lent)
        opened_with = [inputs[place] for place in self._open.values()]
        pairs = zip(self._readers, opened_with, strict=True)
        key = tuple([None if value is None else read(value) for read, value in pairs])
        last = self._last
        if last is None or last[0] != key:  # sooner than a hash of it
            opened = self._calls.get(key) or self._opened(key, tuple(inputs), lent)
            self._last = last = key, opened
        return last[1], tuple(inputs)

    def _opened(self, key: object, inputs: Arguments, lent: Lent) -> _Opened:
        call, taken, out = self._op.prepared_call(inputs, self._out, self._outputs, lent)
        opened = _Opened(self._op, call, taken, out, self._workspace, list(self._open.values()))
        if len(self._calls) >= _MAX_OPENED:
            self._calls.clear()
        self._calls[key] = opened
        return opened


_MAX_OPENED = 64


def opened(bound: BoundCall | OpenCall) -> OpenCall:
    """A bound call whose inputs are known to be open, for type checkers."""
    assert isinstance(bound, OpenCall)
    return bound


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
    ) -> None:
        self.call = call
        self._op, self._workspace = op, workspace
        self._given = out
        _, flat, _ = call.taken_apart(inputs, out)
        self._pieces = [
            None if place in places else call.backend.pointers(_as_list(inputs[place], variadic))
            for place, variadic in call.array_places
        ]
        lists = [(p in places, _as_list(inputs[p], variadic)) for p, variadic in call.array_places]
        closed = [None if is_open else array for is_open, arrays in lists for array in arrays]
        self._unchanged = Unchanged(call, (*closed, *flat))
        self._out_addresses = call.backend.pointers(flat) if call.has_out else []
        self._places = {op.inputs[place].name: place for place in call.prepared.changing}
        self._kept = None if workspace is not None else _kept(call, inputs, out, places)

    def launch(self, inputs: Arguments, values: Mapping[str, object]) -> object:
        """The call with these arguments."""
        call = self.call
        inputs, tables = self._checked(inputs, values)
        inputs, out, arrays = call.taken_apart(inputs, self._given)
        return call.finish(inputs, arrays, out, self._workspace, tables)

    def checked(self, inputs: Arguments, values: Mapping[str, object]) -> CheckedCall:
        """The same, not launched yet."""
        call = self.call
        inputs, tables = self._checked(inputs, values)
        if self._kept is None or tables is None:
            held = _held(call, inputs, self._given)
        else:
            changing = call.prepared.changing
            kept = (inputs[p] if p in changing else v for p, v in enumerate(self._kept[0]))
            held = (tuple(kept), *self._kept[1:])
        return CheckedCall(self._op, call, held, self._workspace, tables)

    def _checked(
        self, inputs: Arguments, values: Mapping[str, object]
    ) -> tuple[Arguments, Tables | None]:
        """With the values; the tables of arrays none of which is written and another's too."""
        call = self.call
        self._unchanged.refuse_others()
        if values:
            inputs = _with_values(self._op, inputs, self._places, values)
        pieces = zip(self._pieces, call.array_places, strict=True)
        addresses = list(
            itertools.chain.from_iterable(
                call.backend.pointers(_as_list(inputs[place], variadic)) if known is None else known
                for known, (place, variadic) in pieces
            )
        )
        addresses += self._out_addresses
        if call.overlap is not None:
            call.overlap.refuse(addresses)
        return inputs, call.tables(addresses)


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
        tables: Tables | None,
    ) -> None:
        self._op, self._call = op, call
        self._inputs, self._arrays, self._results = held
        self._workspace, self._tables = workspace, tables
        self._places = {op.inputs[place].name: place for place in call.changing}

    @property
    def changing(self) -> Collection[str]:
        """The names of what is new each time."""
        return self._places

    def __call__(self, **values: object) -> None:
        """Launch, with these values instead of those before."""
        call, inputs = self._call, self._inputs
        if values:
            inputs = _with_values(self._op, inputs, self._places, values)
        own = call.values(inputs)
        call.execute(inputs, self._arrays, self._results, self._workspace, own, self._tables)


def _held(call: Call, inputs: Arguments, out: Arguments) -> Held:
    inputs, out, arrays = call.taken_apart(inputs, out)
    return inputs, arrays, call.completed(arrays, out, call.values(inputs))


def _kept(call: Call, inputs: Arguments, out: Arguments, opened: Sequence[int]) -> Held | None:
    """The same without what is open; None where that is needed beside its address."""
    if call.taken is None or call.makes_arrays or call.checks or call.check_numbers:
        return None
    values = call.prepared.changing
    blank = tuple(
        v if p not in opened or p in values else [None] * len(v) if isinstance(v, tuple) else None
        for p, v in enumerate(inputs)
    )
    full, kept = _held(call, inputs, out), _held(call, blank, out)
    every, others = full[1] + full[2], kept[1] + kept[2]
    return kept if all(every[place] is others[place] for place in call.taken) else None


def _as_list(value: Any, variadic: bool) -> Sequence[Array | None]:
    return value if variadic and value is not None else (value,)


_NOTHING = {True: NONE_LENT, False: Lent((), (), (), detaches=False)}


def _with_values(
    op: Operator, inputs: Arguments, places: Mapping[str, int], values: Mapping[str, object]
) -> Arguments:
    """The inputs with the values of this call in their places."""
    taken = list(inputs)
    if op.declaration.other_inputs:
        values = named(op.name, op.declaration.other_inputs, values)
    for name, value in values.items():
        if name not in places:
            refuse(op.name, name, f"a name among {sorted(places)}, which may change", "another")
        item = op.inputs[places[name]]
        if value is None or (item.memory == "either" and not is_number(value)):
            refuse(op.name, name, "a number, as was bound", type(value).__name__)
        taken[places[name]] = adopt_input(op.name, item, value, _NOTHING[op.declaration.detaches])
    return tuple(taken)
