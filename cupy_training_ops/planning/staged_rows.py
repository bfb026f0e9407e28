# SPDX-License-Identifier: MIT
"""How rows that are held on chip are divided among threads; see algorithm/staged_rows.cuh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..dtypes import FLOAT64, Dtype
from ..plan import VEC_NBYTES, WARP, Config, Device, align_up, by_value, ceil_div

MAX_THREADS = 512  # of a block
SHORT_THREADS = 128  # of a block whose warps have rows of their own
RESERVED_NBYTES = 1024  # of shared memory, by the system for each block


@dataclass(frozen=True)
class Rows:
    """Rows of matrices with elements of `itemsizes`, and the threads that share a row.

    `width` neighbouring elements are a slot, `depth` slots a thread's; a multiprocessor has
    registers for `resident` threads.
    """

    count: int
    length: int
    itemsizes: tuple[int, ...]
    width: int
    threads: int
    depth: int
    resident: int
    stages: int = 2

    @property
    def block(self) -> int:
        """Threads of a block."""
        return SHORT_THREADS if self.threads <= WARP else self.threads

    @property
    def groups(self) -> int:
        """Rows that a block has at a time."""
        return self.block // self.threads

    @property
    def shared_nbytes(self) -> int:
        """Shared memory of a block."""
        if self.width > 1:
            row = self.depth * self.width * self.threads * sum(self.itemsizes)
        else:
            pitches = (align_up(self.length * n, VEC_NBYTES) + VEC_NBYTES for n in self.itemsizes)
            row = sum(pitches)
        return self.stages * self.groups * row

    def blocks(self, device: Device) -> int:
        """As many as are resident at a time, each of which walks through rows; fewer for few."""
        shared = self.shared_nbytes + RESERVED_NBYTES
        fitting = (device.max_shared_nbytes + RESERVED_NBYTES) // shared
        resident = max(1, min(self.resident // self.block, fitting))
        return max(1, min(ceil_div(self.count, self.groups), device.multiprocessors * resident))

    def config(self, device: Device) -> Config:
        """The launch configuration."""
        return Config((self.blocks(device),), (self.block,), self.shared_nbytes)

    @property
    def argument(self) -> np.void:
        """The kernels' struct Rows."""
        return by_value(
            count=np.int64(self.count),
            length=np.int64(self.length),
            threads=np.int32(self.threads),
            groups=np.int32(self.groups),
            slots=np.int32(self.length // self.width),
            depth=np.int32(self.depth),
            stages=np.int32(self.stages),
        )


@dataclass(frozen=True)
class Kernels:
    """Threads for which a multiprocessor has registers, of the kernels for slots and elements."""

    with_slots: int
    by_elements: int


def held(
    device: Device,
    shape: tuple[int, int],
    dtypes: Sequence[Dtype],
    width: int,
    kernels: Kernels,
    aligned: bool,
) -> Rows | None:
    """Rows that fit on chip: by slots of `width`, where arrays and rows are aligned, or elements.

    shape: rows and their elements; dtypes: of the arrays whose rows are held. Rows of slots have
    the next ones on their way where that leaves a multiprocessor all its threads, those of elements
    always.
    """
    if not aligned or shape[1] % width:
        width = 1
    resident = kernels.with_slots if width > 1 else kernels.by_elements
    sizes = tuple(dtype.itemsize for dtype in dtypes)
    found = _divided(*shape, sizes, width, _most_columns(dtypes, width), resident)
    if found.threads > MAX_THREADS:
        return None
    if width > 1 and resident // found.block * found.shared_nbytes > device.max_shared_nbytes:
        found = replace(found, stages=1)
    return found if found.shared_nbytes <= device.max_shared_nbytes else None


def _most_columns(dtypes: Sequence[Dtype], width: int) -> int:
    """Columns of a thread at most: DEPTH of the kernels times the width."""
    if FLOAT64 in dtypes:
        return 8
    return 32 if width > 1 else 16


def _divided(
    count: int, length: int, sizes: tuple[int, ...], width: int, most: int, resident: int
) -> Rows:
    """As few threads a row as it takes; elements go by whole warps."""
    threads = max(1, ceil_div(length, most))
    if width > 1 and threads <= WARP:
        threads = 1 << (threads - 1).bit_length()
    else:
        threads = align_up(threads, WARP)
    depth = max(1, ceil_div(length // width, threads))
    return Rows(count, length, sizes, width, threads, depth, resident)
