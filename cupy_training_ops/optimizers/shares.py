# SPDX-License-Identifier: MIT
"""States of an optimizer that is divided among ranks: shares, and what they are together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from ..declare.schema import Shape
from ..dtypes import HostArray
from ..errors import refuse, shown
from .memory import hosted
from .parts import Split
from .state import Layout, State


@dataclass(frozen=True)
class Share(Layout):
    """A rank's share of a state: of each moment its own elements, behind each other."""

    rank: int = 0
    split: Split = field(default_factory=lambda: Split.of((), 1))

    @classmethod
    def of(cls, whole: Layout, rank: int, n_ranks: int) -> Self:
        """The share of one of so many ranks."""
        split = Split.of(list(map(math.prod, whole.shapes.values())), n_ranks)
        return cls(whole.optimizer, whole.shapes, whole.moments, whole.counts, rank, split)

    @property
    def numbers(self) -> tuple[str, ...]:
        return (*super().numbers, "rank", "ranks")

    @property
    def held(self) -> Mapping[str, Shape]:
        sizes = dict.fromkeys(self.shapes, 0)
        for name, start, stop in self.pieces:
            sizes[name] += stop - start
        return {name: (size,) for name, size in sizes.items()}

    @property
    def pieces(self) -> list[tuple[str, int, int]]:
        """Which elements of which parameters."""
        sizes, names = list(map(math.prod, self.shapes.values())), list(self.shapes)
        return [(names[i], a, b) for i, a, b in self.split.pieces(self.rank, sizes)]

    def check_numbers(self, state: State) -> None:
        super().check_numbers(state)
        got, expected = (state["rank"], state["ranks"]), (self.rank, self.split.n_ranks)
        if got != expected:
            self._refuse("", "rank {} of {}".format(*expected), "rank {} of {}".format(*got))

    def cut(self, moment: Mapping[str, Any]) -> list[HostArray]:
        """The pieces of a whole moment."""
        flat = {name: hosted(array).reshape(-1) for name, array in moment.items()}
        return [flat[name][start:stop] for name, start, stop in self.pieces]

    def put_together(self, pieces: Sequence[HostArray]) -> dict[str, HostArray]:
        """A share's moment of its pieces."""
        lists: dict[str, list[HostArray]] = {name: [] for name in self.shapes}
        for (name, *_), piece in zip(self.pieces, pieces, strict=True):
            lists[name].append(piece)
        empty = np.empty(0, pieces[0].dtype if pieces else np.float32)
        return {name: np.concatenate([empty, *own]) for name, own in lists.items()}

    def taken_apart(self, moment: Mapping[str, Any]) -> list[HostArray]:
        """The pieces of a share's moment."""
        rest, apart = {name: hosted(array) for name, array in moment.items()}, []
        for name, start, stop in self.pieces:
            piece, rest[name] = np.split(rest[name], [stop - start])
            apart.append(piece)
        return apart


def joined(states: Sequence[State], whole: Layout) -> State:
    """The whole state of all ranks' shares, which are in the order of ranks."""
    if not states:
        refuse(whole.optimizer, "state", "a state of each rank", "none")
    shares = [Share.of(whole, rank, len(states)) for rank in range(len(states))]
    for share, state in zip(shares, states, strict=True):
        share.check(state)
        if state["step"] != states[0]["step"]:
            expected = f"{shown(states[0]['step'])}, as of rank 0"
            share._refuse("step", expected, shown(state["step"]))
    found: State = {key: states[0][key] for key in whole.numbers}
    for moment, dtype in whole.moments.items():
        flat = {name: np.empty(math.prod(shape), dtype) for name, shape in whole.shapes.items()}
        for share, state in zip(shares, states, strict=True):
            pieces = share.taken_apart(state[moment])
            for (name, start, stop), piece in zip(share.pieces, pieces, strict=True):
                flat[name][start:stop] = piece
        found[moment] = {name: flat[name].reshape(shape) for name, shape in whole.shapes.items()}
    return found
