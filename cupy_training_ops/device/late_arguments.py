# SPDX-License-Identifier: MIT
"""Arguments of launches that follow from numbers that change from call to call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter

from ..declare.schema import Changing
from ..dtypes import Dtype
from .arguments import Late

Values = Mapping[int, object]  # of changing inputs, by their places


class LateArgument:
    """What follows from values that change; of a piece of work it may be anything.

    From the very number of the call before it is the same object.
    """

    def __init__(self, dtype: Dtype | None, changing: Changing, make: Late) -> None:
        self.dtype, self.anew, self.places = dtype, make, changing.places
        self._pick = itemgetter(*changing.places)
        self._last: tuple[object, object] = (self, None)

    def of(self, values: Values) -> object:
        """The argument in a call with these values."""
        picked = self._pick(values)
        known, made = self._last  # once: another thread may put its own there
        if picked is not known:  # nor is a row of several ever
            made = self.anew(values)
            self._last = picked, made
        return made


def renewed(
    late: Sequence[LateArgument], known: list[object], place: int
) -> Callable[[object], list[object]]:
    """What gives known arguments, but for those that follow from this place's value, a new one in
    each call."""
    following = [(i, each.anew) for i, each in enumerate(late) if place in each.places]

    def with_value(value: object) -> list[object]:
        found, given = known.copy(), {place: value}
        for i, anew in following:
            found[i] = anew(given)
        return found

    return with_value
