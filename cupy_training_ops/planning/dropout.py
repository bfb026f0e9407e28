# SPDX-License-Identifier: MIT
"""Launches of dropout: element by element, or over lines; what a ratio and a state are there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from .. import philox
from ..dtypes import Dtype
from ..numerics import dropout_scale
from ..plan import VEC_NBYTES, Config, Device, Launch, Plan
from ..schema import Changing, Function, Spec
from .elementwise import streamed, type_slots
from .fast_division import divisor
from .row_softmax import Held, Lines, division, held_nbytes

Ratio = float | Changing
State = Spec | Changing
Arrays = tuple[Spec | None, ...]

N_HELD = 2  # arrays that a thread holds of a line, beside a mask


@dataclass(frozen=True)
class Launches:
    """What launches of one call share: the device, the type of the elements, the ratio."""

    device: Device
    t: Dtype
    ratio: Ratio  # 0 where nothing is dropped

    @property
    def scale(self) -> object:
        """What kept elements are multiplied with."""
        return self._of_ratio(partial(dropout_scale, t=self.t))

    @property
    def keeps_all(self) -> object:
        """Whether there is nothing to drop, whatever a mask says."""
        return self._of_ratio(lambda ratio: ratio == 0)

    def elementwise(self, symbol: str, arrays: Arrays, *options: object) -> Launch:
        """A kernel of algorithm/elementwise.cuh; the first array is of type T."""
        return replace(streamed(symbol, arrays, options), slots=self._slots)

    def over_lines(
        self,
        stem: str,
        arrays: Arrays,
        options: tuple[object, ...],
        lines: Lines,
        fits: bool,
        most: int,
    ) -> Launch:
        """A kernel of algorithm/row_softmax.cuh, with at most so many threads where lines are rows.

        fits: whether rows of all arrays start at the same alignment.
        """
        nbytes, itemsize = held_nbytes(self.device, self.t), self.t.itemsize
        held = Held(nbytes, N_HELD, itemsize, VEC_NBYTES // itemsize, N_HELD, most)
        aligned = fits and all(spec.aligned for spec in arrays if spec is not None)
        divided = division(lines, held, aligned)
        args = (*arrays, *options, *divided.args)
        return Launch(stem + divided.suffix, divided.config, args, self._slots)

    def drawn(self, state: State) -> tuple[object, ...]:
        """The arguments of what draws: the state, the largest word that keeps, the scale."""
        return state, self._of_ratio(philox.largest_kept), self.scale

    def then_advance(self, launch: Launch, state: State) -> Plan:
        """The launch; a state in memory goes on behind it, when all its threads have read it."""
        if isinstance(state, Changing):
            return Plan((launch,))
        by = self._of_ratio(lambda ratio: int(ratio > 0))
        config = Config((1,), (1,))
        return Plan((launch, Launch("dropout__advance", config, (state, by), self._slots)))

    def _of_ratio(self, function: Function) -> object:
        ratio = self.ratio
        return ratio.then(function) if isinstance(ratio, Changing) else function(ratio)

    @property
    def _slots(self) -> dict[str, str]:
        """The same for all kernels, so that a type is compiled once."""
        return type_slots(self.t) | {"LINE_NBYTES": str(held_nbytes(self.device, self.t))}


def forward(launches: Launches, symbol: str, arrays: Arrays, state: State) -> Plan:
    """Dropout of the first array."""
    launch = launches.elementwise(symbol, arrays, *launches.drawn(state))
    return launches.then_advance(launch, state)


def with_bias(launches: Launches, symbol: str, arrays: Arrays, n_bias: int, state: State) -> Plan:
    """The same after a sum with a bias of so many elements, which repeats."""
    options = (divisor(n_bias), *launches.drawn(state))
    return launches.then_advance(launches.elementwise(symbol, arrays, *options), state)
