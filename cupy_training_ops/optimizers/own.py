# SPDX-License-Identifier: MIT
"""A rank's own optimizer: its parts of the gradients and of the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..call.bound import CheckedCall
from ..call.keys import Known
from .base import Optimizer
from .counts import Places
from .parts import GatheredParts


class Means(list[Any]):
    """Gradients whose parts are means already, divided as those of this optimizer."""

    def __init__(self, gradients: Sequence[Any], optimizer: object) -> None:
        super().__init__(gradients)
        self.optimizer = optimizer


def piece(array: Any, start: int, stop: int) -> Any:
    """A view of elements of a contiguous array."""
    return array.reshape(-1)[start:stop]


Turns = list[tuple[Places, GatheredParts]]  # parameters that are updated together, and what gathers
Updates = list[list[CheckedCall]]  # of each turn: one for each count of steps


class Cut(NamedTuple):
    """This rank's parts of gradients that may come again, and the updates by them."""

    known: Known | None  # None where none of them can be known again
    places: Places
    parts: list[Any]
    updates: Updates


class Own(Optimizer):
    """The parts that this rank updates, as parameters of rank 1; with the last the step counts."""

    counts = False  # what it is told

    def _written(self, places: Places) -> list[str]:
        counts = places[-1] == self._every[-1]
        return [name for name in self._outputs if counts or name != "new_T"]
