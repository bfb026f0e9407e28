# SPDX-License-Identifier: MIT
"""One plan of all memory that a step allocates: recorded in one step, the same in all others.

Two blocks may have the same place if one is freed before the other is allocated.

    a = malloc(512); free(a); b = malloc(512)      both at offset 0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import ProviderError

ALIGNMENT = 512  # bytes, as CuPy's pool has it
FOREVER = 1 << 62


class Block(NamedTuple):
    """Memory of a step: its bytes, and when it is allocated and freed."""

    nbytes: int
    start: int
    end: int


class Plan(NamedTuple):
    """The offset of each block, in order of allocation, and the bytes of all together."""

    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    nbytes: int


def place_blocks(blocks: Sequence[Block]) -> Plan:
    """A plan: large blocks first, each at the lowest offset that is free as long as it lives."""
    order = sorted(range(len(blocks)), key=lambda i: (-blocks[i].nbytes, i))
    sizes = np.array([-(-b.nbytes // ALIGNMENT) * ALIGNMENT for b in blocks], np.int64)
    starts = np.array([b.start for b in blocks], np.int64)
    ends = np.array([b.end for b in blocks], np.int64)
    offsets = np.zeros(len(blocks), np.int64)
    placed = np.zeros(len(blocks), bool)
    for i in order:
        beside = np.flatnonzero(placed & (starts < ends[i]) & (starts[i] < ends))
        offsets[i] = _lowest(offsets[beside], sizes[beside], int(sizes[i]))
        placed[i] = True
    whole = int((offsets + sizes).max(initial=0))
    return Plan(tuple(b.nbytes for b in blocks), tuple(map(int, offsets)), whole)


def _lowest(offsets: Any, sizes: Any, nbytes: int) -> int:
    """The lowest offset of a gap of `nbytes` between blocks at these offsets, of these sizes."""
    free = 0
    for k in np.argsort(offsets, kind="stable"):
        if offsets[k] - free >= nbytes:
            return free
        free = max(free, int(offsets[k] + sizes[k]))
    return free


class Recorder:
    """An allocator over another one that records when each block is allocated and freed."""

    def __init__(self, malloc: Callable[[int], Any]) -> None:
        import cupy

        self._malloc, self._cuda = malloc, cupy.cuda
        self._device = cupy.cuda.runtime.getDevice()
        self._blocks: list[list[int]] = []
        self._places: dict[int, int] = {}
        self._time = 0

    def malloc(self, nbytes: int) -> Any:
        """Memory of the other one; a block is recorded until the last array over it ends."""
        memory = self._malloc(nbytes)
        if not nbytes:
            return memory
        self._time += 1
        place = len(self._blocks)
        self._blocks.append([nbytes, self._time, FOREVER])
        self._places[memory.ptr] = place
        lease = _Lease(self, place, memory)
        owned = self._cuda.UnownedMemory(memory.ptr, nbytes, lease, self._device)
        return self._cuda.MemoryPointer(owned, 0)

    def free(self, place: int) -> None:
        """Note that a block is free, by its place among all."""
        self._time += 1
        self._blocks[place][2] = self._time

    def plan(self, results: Sequence[Any]) -> Plan:
        """The plan of the step, when all but its results is freed; what else is still there was
        made once, for later steps too, and is left out."""
        lasting = {self._places.get(array.data.mem.ptr) for array in results}
        blocks = [
            Block(*block)
            for i, block in enumerate(self._blocks)
            if block[2] != FOREVER or i in lasting
        ]
        return place_blocks(blocks)


class _Lease:
    """Memory as long as an array uses it; then the recorder notes that it is free."""

    __slots__ = ("_memory", "_place", "_recorder")

    def __init__(self, recorder: Recorder, place: int, memory: Any) -> None:
        self._recorder, self._place, self._memory = recorder, place, memory

    def __del__(self) -> None:
        self._recorder.free(self._place)


class OtherMemoryError(ProviderError):
    """A step allocates other blocks than its plan has."""


class Arena:
    """An allocator that gives the blocks of a plan, in one piece of memory.

    otherwise: allocates where another block is asked for than the plan has, and from then on, as
    what lives beside what is no longer known. Without it that is an OtherMemoryError.
    """

    def __init__(
        self, plan: Plan, memory: Any, otherwise: Callable[[int], Any] | None = None
    ) -> None:
        import cupy

        self._pointer = cupy.cuda.MemoryPointer
        self._plan, self._memory, self._otherwise = plan, memory, otherwise
        self.place = 0  # of the next block
        self.is_other = False  # True once `otherwise` was asked

    def malloc(self, nbytes: int) -> Any:
        """The next block."""
        i = self.place
        if self.is_other and self._otherwise is not None:
            return self._otherwise(nbytes)
        if not nbytes:
            return self._pointer(self._memory, 0)
        if i < len(self._plan.sizes) and self._plan.sizes[i] == nbytes:
            self.place += 1
            return self._pointer(self._memory, self._plan.offsets[i])
        if self._otherwise is None:
            raise OtherMemoryError(
                f"expected as much memory as the step before took, got {nbytes} bytes as block {i}"
            )
        self.is_other = True
        return self._otherwise(nbytes)

    @property
    def is_used(self) -> bool:
        """True if all of the plan was used, and nothing else."""
        return self.place == len(self._plan.sizes) and not self.is_other
