# SPDX-License-Identifier: MIT
"""Arrays with their channels last, where no tiles read or write them so; cuda_src/conv/layouts.cuh.

What is planned sees a C-contiguous array in scratch memory in their place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ...declare.schema import Spec
from ...dtypes import Dtype
from ...plan import Config, Launch, Plan, Scratch, ScratchMemory, Step, ceil_div
from .facts import SIDE, THREADS
from .plan_launches import launch
from .plan_variants import small_variant


def have_channels_last(*arrays: Spec | None) -> bool:
    """Whether some have."""
    return any(spec is not None and spec.channels_last for spec in arrays)


class Copies:
    """C-contiguous arrays in scratch memory, of those that are read and those that are written."""

    def __init__(self, dtype: Dtype) -> None:
        self.slots = small_variant(dtype).slots
        self.scratch = ScratchMemory()
        self.pieces: dict[int, Scratch] = {}  # by the place of what stands for them
        self.before: list[Launch] = []
        self.after: list[Launch] = []

    def read(self, spec: Spec) -> Spec:
        """What stands for an array that is read."""
        if not spec.channels_last:
            return spec
        copy, piece = self._copy(spec)
        plane = math.prod(spec.shape[2:])
        self.before.append(self._transposed(spec, piece, spec.shape[0], plane, spec.shape[1]))
        return copy

    def written(self, spec: Spec | None) -> Spec | None:
        """The same of one that is written, if it is."""
        return None if spec is None else self.written_as(spec)

    def written_as(self, spec: Spec) -> Spec:
        """What stands for an array that is written."""
        if not spec.channels_last:
            return spec
        copy, piece = self._copy(spec)
        plane = math.prod(spec.shape[2:])
        self.after.append(self._transposed(piece, spec, spec.shape[0], spec.shape[1], plane))
        return copy

    def staged(self, spec: Spec, staging: Callable[[Spec, Scratch], Launch]) -> Spec:
        """What stands for an array that is read, with its channels side by side."""
        copy, piece = self._copy(spec)
        self.before.append(staging(spec, piece))
        return replace(copy, channels_last=True)

    def plan(self, made: Plan) -> Plan:
        """That of the copies, made for what stands for them."""
        joined = self.scratch.plan(*self.before).then(made)
        return replace(joined, steps=(*map(self._placed, joined.steps), *self.after))

    def _copy(self, spec: Spec) -> tuple[Spec, Scratch]:
        piece, place = self.scratch.take(spec.size, spec.dtype), -2 - len(self.pieces)
        self.pieces[place] = piece
        return replace(spec, channels_last=False, aligned=True, place=place), piece

    def _placed(self, step: Step) -> Step:
        args = (
            self.pieces.get(arg.place, arg) if isinstance(arg, Spec) else arg for arg in step.args
        )
        return replace(step, args=tuple(args))

    def _transposed(
        self, read: Spec | Scratch, written: Spec | Scratch, n: int, height: int, width: int
    ) -> Launch:
        config = Config((n * ceil_div(height, SIDE) * ceil_div(width, SIDE),), (THREADS,))
        return launch("transpose", config, (read, written, height, width), self.slots)
