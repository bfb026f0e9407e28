# SPDX-License-Identifier: MIT
"""Bound calls: checked once, then only launched; inputs may stay open, values may change."""

from __future__ import annotations

from typing import Any

from .bindable import Outputs, with_values
from .foreign import Lent
from .opened import OpenCall
from .operator import Operator
from .prepared import Arguments, Arrays, grouped
from .run import NO_VALUES, Call
from .unchanged import AtAddresses, Unchanged

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
    """Whether an output is the very input that it replaces."""
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
