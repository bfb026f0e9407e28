# SPDX-License-Identifier: MIT
"""The values that each call of a bound one is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import refuse
from .arrays import adopt_input
from .convert import is_number
from .foreign import NONE_LENT, Lent
from .operator import Operator
from .prepared import Arguments
from .renamed import named

Outputs = Sequence[str] | None


_NOTHING = {True: NONE_LENT, False: Lent((), (), (), detaches=False)}


def with_values(
    op: Operator, inputs: Arguments, places: Mapping[str, int], values: Mapping[str, object]
) -> Arguments:
    """The inputs with the values of this call in their places."""
    taken: list[Any] = list(inputs)
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
