# SPDX-License-Identifier: MIT
"""Steps that were made: what they were given, and what makes them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..backend import Backend
from ..call.bound import CheckedCall
from ..call.keys import Known, reader
from ..declare.schema import Input
from ..planning.step import number
from .whole import Whole

Arrays = tuple[Any, ...]

GIVEN = ("gradients", "lr", "loss_scale", "max_norm")  # to a step
_AT = {name: i for i, name in enumerate(GIVEN)}
_DECLARED = (
    Input("gradients", "T", variadic=True, holes=True),
    *(number(name, "L") for name in GIVEN[1:]),
)
EVERY = (*_DECLARED, _DECLARED[0])  # and the parameters
CLOSED = (_DECLARED[0], _DECLARED[0])  # parameters and their copies
_READERS = tuple(map(reader, _DECLARED))


class Step(NamedTuple):
    """A step that was made, whose gradients may come again."""

    known: Known | None  # None where none of them can be known again
    variant: object
    norm: CheckedCall | None  # of gradients whose parameters have several counts
    updates: Sequence[CheckedCall]

    def has(self, variant: object, given: Arrays) -> bool:
        """Return True if a step that is given this is the same."""
        return self.known is not None and variant == self.variant and self.known.has(given)

    @property
    def over_tensors(self) -> bool:
        """Return True if arrays are tensors, whose current stream the calls find themselves."""
        return all(call.over_tensors for call in self.updates)

    def launch(self, given: Arrays, whole: Whole) -> None:
        """The step, with the numbers that it is given."""
        if self.norm is not None:
            self.norm()
        writes = []
        for call in self.updates:  # a comprehension would be a call
            writes.append(call.computed(**numbers_of(call, given)))
        whole.write(writes)


def numbers_of(call: CheckedCall, given: Arrays) -> dict[str, Any]:
    """The numbers of a step that an update takes anew."""
    return {name: given[_AT[name]] for name in call.changing}


def known_of(backend: Backend, given: Arrays) -> Known | None:
    """A record of the gradients, which the next step's are compared with."""
    return Known.of(backend, _DECLARED, _READERS, given, by_memory=True)
