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
FOREVER = 1 << 62  # the end of a block that was not freed


class Block(NamedTuple):
    """Memory of a step: its bytes, and the times of its malloc and free.

    A time is the number of the call among all calls of malloc and free.
    """

    nbytes: int
    start: int
    end: int


class Plan(NamedTuple):
    """A place in one piece of memory for each block, in order of allocation, all in bytes.

    sizes, offsets: of each block. nbytes: of the whole piece.
    """

    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    nbytes: int


def place_blocks(blocks: Sequence[Block]) -> Plan:
    """Return a plan: large blocks first, each at the lowest offset that is free while it lives."""
    order = sorted(range(len(blocks)), key=lambda i: (-blocks[i].nbytes, i))
    sizes = np.array([-(-b.nbytes // ALIGNMENT) * ALIGNMENT for b in blocks], np.int64)  # upwards
    starts = np.array([b.start for b in blocks], np.int64)
    ends = np.array([b.end for b in blocks], np.int64)
    offsets = np.zeros(len(blocks), np.int64)
    placed = np.zeros(len(blocks), bool)
    for i in order:
        # Placed blocks whose life overlaps that of block i.
        beside = np.flatnonzero(placed & (starts < ends[i]) & (starts[i] < ends))
        offsets[i] = _lowest(offsets[beside], sizes[beside], int(sizes[i]))
        placed[i] = True
    whole = int((offsets + sizes).max(initial=0))
    return Plan(tuple(b.nbytes for b in blocks), tuple(map(int, offsets)), whole)


def _lowest(offsets: Any, sizes: Any, nbytes: int) -> int:
    """Return the lowest offset of a gap of `nbytes` between blocks of these offsets and sizes."""
    free = 0
    for k in np.argsort(offsets, kind="stable"):
        if offsets[k] - free >= nbytes:
            return free
        free = max(free, int(offsets[k] + sizes[k]))
    return free


class Recorder:
    """An allocator for CuPy that passes calls on to `malloc` and records each block's life."""

    def __init__(self, malloc: Callable[[int], Any]) -> None:
        import cupy

        self._malloc, self._cuda = malloc, cupy.cuda
        self._device = cupy.cuda.runtime.getDevice()
        self._blocks: list[list[int]] = []  # each [bytes, time of malloc, time of free]
        self._places: dict[int, int] = {}  # {address: index of the last block there}
        self._time = 0  # calls of malloc and free so far

    def malloc(self, nbytes: int) -> Any:
        """Return `nbytes` bytes of the allocator below; the block lives as long as arrays over it.

        UnownedMemory holds the lease, whose end, with the last array's, calls `free`.
        """
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
        """Note that the block of index `place` in order of allocation is free."""
        self._time += 1
        self._blocks[place][2] = self._time

    def plan(self, results: Sequence[Any]) -> Plan:
        """Return the plan of the recorded step, once all of its arrays but `results` are gone.

        Any other block that is not freed is left out: it was allocated once, for later steps too
        (a cache), and those will not ask for it.
        """
        lasting = {self._places.get(array.data.mem.ptr) for array in results}
        blocks = [
            Block(*block)
            for i, block in enumerate(self._blocks)
            if block[2] != FOREVER or i in lasting
        ]
        return place_blocks(blocks)


class _Lease:
    """Keeps memory alive, and tells the recorder when it is garbage-collected itself.

    place: the block's index in order of allocation. memory: CuPy's pointer to it.
    """

    __slots__ = ("_memory", "_place", "_recorder")

    def __init__(self, recorder: Recorder, place: int, memory: Any) -> None:
        self._recorder, self._place, self._memory = recorder, place, memory

    def __del__(self) -> None:
        self._recorder.free(self._place)


class OtherMemoryError(ProviderError):
    """A step allocates other blocks than its plan has."""


class Arena:
    """An allocator for CuPy whose n-th call returns the n-th block of a plan.

    memory: one piece of at least `plan.nbytes` bytes. otherwise: an allocator for the first block
    of another size than the plan's, and all behind it, since which blocks live at the same time is
    unknown from there on. Without it such a block raises OtherMemoryError.
    """

    def __init__(
        self, plan: Plan, memory: Any, otherwise: Callable[[int], Any] | None = None
    ) -> None:
        import cupy

        self._pointer = cupy.cuda.MemoryPointer
        self._plan, self._memory, self._otherwise = plan, memory, otherwise
        self.place = 0  # index of the next block in the plan
        self.is_other = False  # True once `otherwise` was asked

    def malloc(self, nbytes: int) -> Any:
        """Return the next block of the plan, which has to be of `nbytes` bytes (see the class)."""
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
