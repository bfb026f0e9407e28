# SPDX-License-Identifier: MIT
"""Calls whose arrays were checked, to be made with new values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from .bindable import with_values
from .operator import Operator
from .prepared import Arguments, Arrays
from .run import Call, Placed
from .unchanged import AtAddresses

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
        """Whether arrays are tensors, whose current stream it finds itself."""
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
