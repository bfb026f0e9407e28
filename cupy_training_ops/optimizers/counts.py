# SPDX-License-Identifier: MIT
"""How many steps each parameter was updated in, counted where the parameters are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..call.backends import to_host
from ..dtypes import INT64
from .memory import overwrite, twin, zeros

Places = tuple[int, ...]  # of parameters


class Part(NamedTuple):
    """Parameters that were updated in the same steps, and the step that is their next one."""

    places: Places
    count: Any  # an array: what skips a step is known on the device alone


class Counts:
    """The parts of all parameters: one, until a step has gradients of some of them alone."""

    def __init__(self, like: Any, n_parameters: int) -> None:
        self._n_parameters = n_parameters
        self._parts = [Part(tuple(range(n_parameters)), zeros(like, (), INT64))]
        overwrite(self._parts[0].count, np.array(1))

    def of(self, places: Places) -> list[Part]:
        """The parts that these parameters are; one that has others too is taken apart."""
        parts = self._parts
        if len(parts) == 1 and parts[0].places == places:
            return parts
        wanted, chosen, every = set(places), list[Part](), list[Part]()
        for part in parts:
            own = tuple(i for i in part.places if i in wanted)
            if own and own != part.places:
                others = tuple(i for i in part.places if i not in wanted)
                every.append(Part(others, twin(part.count)))
                part = Part(own, part.count)
            every.append(part)
            if own:
                chosen.append(part)
        self._parts = every
        return chosen

    def made(self) -> list[int]:
        """The steps of each parameter; waits."""
        steps = [0] * self._n_parameters
        for part in self._parts:
            n_made = int(to_host(part.count)) - 1
            for i in part.places:
                steps[i] = n_made
        return steps

    def load(self, made: Sequence[int]) -> None:
        """Go on from these steps, in the arrays that there are."""
        parts, numbers = list[Part](), list[int]()
        for part in self._parts:
            alike: dict[int, list[int]] = {}
            for i in part.places:
                alike.setdefault(made[i], []).append(i)
            for n_made, own in alike.items():
                is_first = own[0] == part.places[0]
                parts.append(Part(tuple(own), part.count if is_first else twin(part.count)))
                numbers.append(n_made)
        for part, n_made in zip(parts, numbers, strict=True):
            overwrite(part.count, np.array(n_made + 1))
        self._parts = parts
