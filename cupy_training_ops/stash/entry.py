# SPDX-License-Identifier: MIT
"""One array of a stash, and what is measured of its codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..backend import Array
from ..codecs.kept.entry import Account, Entry
from ..codecs.kept.guards import INDEX, LINEAR, MEASURES, NORMALISED, RANGE, TILES, Guard
from ..codecs.kept.policies import BY_RANGE
from ..codecs.kept.window import Waiting
from ..declare.schema import Spec
from ..device.streams import Mark, Streams
from ..errors import refuse
from ..families.gist.operators import Decoder

NAME = "ActivationStash"


@dataclass(eq=False, kw_only=True)
class StashEntry(Entry):
    """One array that was put."""

    name: str
    spec: Spec
    device: int
    streams: Streams
    place: tuple[object, ...]
    row: dict[str, Any]  # what a report says of it
    account: Account
    others: dict[str, StashEntry]  # of the stash, by name, with this one
    original: Any
    is_tensor: bool  # what came was one, and comes back as one
    seen: tuple[Any, Any] | None  # in checking mode: what came, and a copy
    code: Any = None
    decoder: Decoder | None = None
    target: Array | None = None  # what it is decoded into, perhaps not yet
    decoded: Array | None = None  # the same, behind `mark`
    mark: Mark = None

    @property
    def nbytes(self) -> int:
        """Bytes of what stays."""
        return self.spec.nbytes if self.code is None else self.code.nbytes

    def cut(self, nbytes: int) -> Any:
        """In memory of the stream beside."""
        return self.streams.beside(self.code[:nbytes].copy)

    def failed(self, waiting: Waiting, lack: str) -> None:
        """Keep the array; where indices would be lost, refuse it."""
        self.account.add(-self.nbytes)
        self.code = self.decoder = None
        if lack == INDEX and waiting.guard.need == "index":
            self.others.pop(self.name, None)
            refuse(NAME, "array", f"indices from 0 to 15 of {self.name!r}", "another number")
        self.account.add(self.nbytes)
        self.row.update(codec=None, after=self.nbytes)


def guard_of(codec: str, need: str, x: Spec) -> Guard:
    """What is measured of codes for a need."""
    measure, row = MEASURES.get(codec, ""), x.shape[-1] if x.shape else 1
    guarded = {TILES: (LINEAR, NORMALISED), RANGE: BY_RANGE}.get(measure, (need,))
    if not x.size or need not in guarded:
        measure = ""
    return Guard(measure, need, (1, x.size // row, row) if need == NORMALISED and measure else None)
