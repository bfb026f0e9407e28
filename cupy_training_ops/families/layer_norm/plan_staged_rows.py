# SPDX-License-Identifier: MIT
"""How rows that are held on chip are divided among threads; see layer_norm/staged_rows.cuh."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...dtypes import Dtype
from ...facts import WARP
from ...plan import VEC_NBYTES, Config, Device, align_up, by_value, ceil_div
from ...rules.widening import computed_in
from . import facts
from .facts import HELD_COLUMNS, HELD_THREADS, SINGLE_COLUMNS

RESERVED_NBYTES = 1024  # of shared memory, by the system for each block


@dataclass(frozen=True)
class Rows:
    """Rows of matrices with elements of `itemsizes`, and the threads that share a row.

    `width` neighbouring elements are a slot, `depth` slots a thread's. A block has `groups` of
    threads with rows of their own; a multiprocessor has registers for `resident` threads.
    """

    count: int
    length: int
    itemsizes: tuple[int, ...]
    width: int
    threads: int
    groups: int
    depth: int
    resident: int
    stages: int
    parameter_nbytes: int = 0  # of a column of a block, where rows are shifted

    @property
    def block(self) -> int:
        """Threads of a block."""
        return self.threads * self.groups

    @property
    def period(self) -> int:
        """Rows after which they begin alike, where slots do not begin with the row."""
        return self.width // math.gcd(self.length, self.width)

    @property
    def shifted(self) -> bool:
        """Whether slots do not begin with the row."""
        return self.period > 1

    @property
    def shared_nbytes(self) -> int:
        """Shared memory of a block."""
        parameters = self.depth * self.width * self.threads * self.parameter_nbytes
        return self.groups * self.row_nbytes + (parameters if self.shifted else 0)

    @property
    def row_nbytes(self) -> int:
        """Shared memory of a group's rows."""
        if self.width > 1:
            row = self.depth * self.width * self.threads * sum(self.itemsizes)
        else:
            pitches = (align_up(self.length * n, VEC_NBYTES) + VEC_NBYTES for n in self.itemsizes)
            row = sum(pitches)
        return self.stages * row

    def blocks(self, device: Device) -> int:
        """As many as are resident at a time, each of which walks through rows; fewer for few."""
        shared = self.shared_nbytes + RESERVED_NBYTES
        fitting = (device.max_shared_nbytes + RESERVED_NBYTES) // shared
        resident = max(1, min(self.resident // self.block, fitting))
        most = device.multiprocessors * resident // self.period * self.period
        wanted = align_up(ceil_div(self.count, self.groups), self.period)
        return max(self.period, min(wanted, most))

    def config(self, device: Device) -> Config:
        """The launch configuration."""
        return Config((self.blocks(device),), (self.block,), self.shared_nbytes)

    @property
    def argument(self) -> np.void:
        """The kernels' struct Rows."""
        return by_value(
            facts.Rows,
            count=self.count,
            length=self.length,
            threads=self.threads,
            groups=self.groups,
            period=self.period,
            slots=self.length // self.width,
            depth=self.depth,
            stages=self.stages,
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
    parameter_nbytes: int,
) -> Rows | None:
    """Rows that fit on chip: by slots of `width`, where arrays are aligned, or elements.

    shape: rows and their elements; dtypes: of the arrays whose rows are held; parameter_nbytes: of
    what is held for a column, where slots do not begin with the row. Few large blocks leave few
    lines of sums. Rows by elements have the next ones on their way, and rows that a block has alone
    where they fit.
    """
    least = 2 * width - 2 if shape[1] % width else 1  # threads: each has one edge at most
    if not aligned or shape[1] < width:
        width, least = 1, 1
    sizes = tuple(dtype.itemsize for dtype in dtypes)
    most = _most_columns(dtypes, width) // (2 if shape[1] % width else 1)
    threads, depth = _threads(shape[1], width, most, least)
    resident = kernels.with_slots if width > 1 else kernels.by_elements
    most_threads = min(HELD_THREADS, resident)
    if threads > most_threads:
        return None
    one = Rows(*shape, sizes, width, threads, 1, depth, resident, 1, parameter_nbytes)
    two = replace(one, stages=2)
    alone = 2 * threads > most_threads and two.shared_nbytes <= device.max_shared_nbytes
    row = two if width == 1 or alone else one
    groups = _groups(row, device)
    return replace(row, groups=groups) if groups else None


def _most_columns(dtypes: Sequence[Dtype], width: int) -> int:
    """Columns of a thread at most."""
    columns = HELD_COLUMNS if width > 1 else SINGLE_COLUMNS
    return columns[max(computed_in(dtype).itemsize for dtype in dtypes)]


def _threads(length: int, width: int, most: int, least: int) -> tuple[int, int]:
    """As few threads a row as it takes, and the slots of one; elements go by whole warps."""
    threads = max(least, ceil_div(length, most))
    if width > 1 and threads <= WARP:
        threads = 1 << (threads - 1).bit_length()
    else:
        threads = align_up(threads, WARP)
    return threads, max(1, ceil_div(length // width, threads))


def _groups(row: Rows, device: Device) -> int:
    """Groups of a block, in whole warps: as many as fit or there are rows for; 0 if none fits."""
    least = max(1, WARP // row.threads)
    shared_nbytes = device.max_shared_nbytes - (row.shared_nbytes - row.row_nbytes)
    most = min(HELD_THREADS, row.resident) // row.threads
    most = min(most, shared_nbytes // row.row_nbytes)
    if row.width == 1 and row.threads > WARP:
        most = min(most, 1)  # which meet at barriers of the block
    if most < least:
        return 0
    wanted = ceil_div(row.count, device.multiprocessors)
    return max(least, min(most, wanted) // least * least)
