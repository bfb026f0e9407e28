# SPDX-License-Identifier: MIT
"""Images in another layout than kernels take: copies stand for them, algorithm/transpose.cuh."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ..declare.schema import Shape, Spec
from ..facts import TRANSPOSED_SIDE, TRANSPOSING_THREADS
from ..plan import Config, Launch, Plan, Scratch, ScratchMemory, Step, ceil_div


class Copies:
    """Transposed copies, in scratch memory, of arrays that a plan reads or writes.

    A plan is made with the specs that `source` and `target` return, and completed by `plan`.
    """

    def __init__(self, symbol: str, slots: Mapping[str, str]) -> None:
        """symbol: the kernel that transposes, compiled with these slots."""
        self._symbol, self._slots = symbol, slots
        self.scratch = ScratchMemory()
        self.pieces: dict[int, Scratch] = {}  # by the place of the spec that stands for each
        self.before: list[Launch] = []  # fill copies of sources
        self.after: list[Launch] = []  # write targets from their copies

    def source(self, spec: Spec, *, last: bool = False) -> Spec:
        """Return the spec to plan with for an array that is read: the array's or a copy's.

        last: the kernel takes it with its channels last, else C-contiguous.
        """
        if spec.channels_last == last or not spec.size:
            return spec
        copy, piece = self.copy(spec, last=last)
        self.before.append(self._transpose(spec, piece, spec.shape, last=last))
        return copy

    def optional_target(self, spec: Spec | None, *, last: bool = False) -> Spec | None:
        """Return target(spec, last=last), or None for an output that is not wanted."""
        return None if spec is None else self.target(spec, last=last)

    def target(self, spec: Spec, *, last: bool = False) -> Spec:
        """Return the spec to plan with for an array that is written: the array's or a copy's.

        last: the kernel writes it with its channels last, else C-contiguous.
        """
        if spec.channels_last == last or not spec.size:
            return spec
        copy, piece = self.copy(spec, last=last)
        self.after.append(self._transpose(piece, spec, spec.shape, last=spec.channels_last))
        return copy

    def copy(self, spec: Spec, *, last: bool) -> tuple[Spec, Scratch]:
        """Return (a spec that stands for a copy of an array, the copy's scratch memory).

        last: the copy has its channels last. Its place is -2, -3, ..., by which `plan` finds it in
        arguments; -1 is no place.
        """
        piece, place = self.scratch.take(spec.size, spec.dtype), -2 - len(self.pieces)
        self.pieces[place] = piece
        return replace(spec, channels_last=last, aligned=True, place=place), piece

    def plan(self, plan: Plan) -> Plan:
        """Put transposing launches around a plan that was made with the copies' specs."""
        plan = self.scratch.plan(*self.before).then(plan)
        return replace(plan, steps=(*map(self._in_scratch, plan.steps), *self.after))

    def _in_scratch(self, step: Step) -> Step:
        """Return the step with the copies' scratch memory in place of their specs."""
        args = (
            self.pieces.get(arg.place, arg) if isinstance(arg, Spec) else arg for arg in step.args
        )
        return replace(step, args=tuple(args))

    def _transpose(
        self, read: Spec | Scratch, written: Spec | Scratch, shape: Shape, *, last: bool
    ) -> Launch:
        """Return the launch that transposes each image, a matrix (channels, pixels).

        shape: (images, channels, ...). last: `written` has its channels last, else `read` has.
        """
        channels, plane = shape[1], math.prod(shape[2:])
        height, width = (channels, plane) if last else (plane, channels)
        tiles = ceil_div(height, TRANSPOSED_SIDE) * ceil_div(width, TRANSPOSED_SIDE)
        config = Config((shape[0] * tiles,), (TRANSPOSING_THREADS,))
        return Launch(self._symbol, config, (read, written, height, width), self._slots)
