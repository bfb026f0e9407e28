# SPDX-License-Identifier: MIT
"""What bound calls need of their operator, and the values that each of them is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from ..declare.schema import Input
from ..errors import refuse
from .arrays import adopt_input
from .call import Call
from .convert import is_number
from .foreign import NONE_LENT, Lent
from .prepared import Arguments
from .renamed import Others, named

Outputs = Sequence[str] | None
Prepare = tuple[Call, Arguments, Arguments]


class Bindable(Protocol):
    """What a bound call needs of its operator."""

    name: ClassVar[str]
    inputs: ClassVar[tuple[Input, ...]]
    other_inputs: ClassVar[Others]
    detaches: ClassVar[bool]

    @property
    def knows_tensors(self) -> bool: ...

    def prepared_call(
        self, inputs: Arguments, out: Arguments, outputs: Outputs, lent: Lent
    ) -> Prepare:
        """The call that fits, and its arguments in forms that have a backend."""


_NOTHING = {True: NONE_LENT, False: Lent((), (), (), detaches=False)}


def with_values(
    op: Bindable, inputs: Arguments, places: Mapping[str, int], values: Mapping[str, object]
) -> Arguments:
    """The inputs with the values of this call in their places."""
    taken: list[Any] = list(inputs)
    if op.other_inputs:
        values = named(op.name, op.other_inputs, values)
    for name, value in values.items():
        if name not in places:
            refuse(op.name, name, f"a name among {sorted(places)}, which may change", "another")
        item = op.inputs[places[name]]
        if value is None or (item.memory == "either" and not is_number(value)):
            refuse(op.name, name, "a number, as was bound", type(value).__name__)
        taken[places[name]] = adopt_input(op.name, item, value, _NOTHING[op.detaches])
    return tuple(taken)
