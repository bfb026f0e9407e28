# SPDX-License-Identifier: MIT
"""Rows that stay on chip, divided among threads; see layer_norm/staged_rows.cuh."""

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
from .facts import SINGLE_COLUMNS, STAGED_THREADS, VECTOR_COLUMNS

# PARAMETERS[by_warps][n]: numbers in shared memory for a column of a row, of n parameters (scale,
# or scale and bias). by_warps: a warp's slots are neighbours in the row.
PARAMETERS = {True: {1: 1, 2: 3}, False: {1: 1, 2: 2}}
ASYNC_COPIES = (8, 0)  # the first GPUs with copies to shared memory that go on meanwhile
# FEW_GROUPS[by_warps]: a block with so many groups or fewer has two rows of each in shared memory.
FEW_GROUPS = {True: 5, False: 1}
# Threads for which a multiprocessor has registers, of the kernels for slots and elements.
SLOT_THREADS, ELEMENT_THREADS = 512, 640
RESERVED_NBYTES = 1024  # of shared memory, by the system for each block


@dataclass(frozen=True)
class Rows:
    """`count` rows of `length` elements, of one or more matrices, and the threads that share a row.

    itemsizes: bytes of an element of each array whose rows stay on chip. `width` neighbouring
    elements are a slot, `depth` slots a thread's. A block has `groups` of `threads` threads, each
    with `stages` rows of its own in shared memory; a multiprocessor has registers for `resident`
    threads. by_warps: a warp's slots are neighbours in the row, else slot i is of thread
    i % threads.
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
    parameter_nbytes: int = 0  # shared memory for scale and bias of a column
    by_warps: bool = False

    @property
    def block(self) -> int:
        """Return the threads of a block."""
        return self.threads * self.groups

    @property
    def period(self) -> int:
        """Return after how many rows one begins again at the same place in a slot."""
        return self.width // math.gcd(self.length, self.width)

    @property
    def is_shifted(self) -> bool:
        """Return True if rows do not all begin with a slot."""
        return self.period > 1

    @property
    def shared_nbytes(self) -> int:
        """Return the bytes of shared memory of a block."""
        return self.groups * self.row_nbytes + self._parameters_nbytes

    @property
    def _parameters_nbytes(self) -> int:
        """Return the bytes of scale and bias in shared memory."""
        holds = self.is_shifted or self.by_warps
        return self.depth * self.width * self.threads * self.parameter_nbytes if holds else 0

    @property
    def row_nbytes(self) -> int:
        """Return the bytes of shared memory of a group's rows."""
        if self.width > 1:
            row = self.depth * self.width * self.threads * sum(self.itemsizes)
        else:
            # A row may begin within a 16-byte word: one word more.
            pitches = (align_up(self.length * n, VEC_NBYTES) + VEC_NBYTES for n in self.itemsizes)
            row = sum(pitches)
        return self.stages * row

    def blocks(self, device: Device) -> int:
        """Return the blocks of a launch: as many as are resident, or as there are rows for.

        They are a multiple of `period`, so that all rows of a block begin alike.
        """
        shared = self.shared_nbytes + RESERVED_NBYTES
        fitting = (device.max_shared_nbytes + RESERVED_NBYTES) // shared
        resident = max(1, min(self.resident // self.block, fitting))
        most = device.multiprocessors * resident // self.period * self.period
        wanted = align_up(ceil_div(self.count, self.groups), self.period)
        return max(self.period, min(wanted, most))

    def config(self, device: Device) -> Config:
        """Return the launch configuration."""
        return Config((self.blocks(device),), (self.block,), self.shared_nbytes)

    @property
    def argument(self) -> np.void:
        """Return the kernels' struct Rows."""
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


def rows_on_chip(
    device: Device,
    shape: tuple[int, int],
    dtypes: Sequence[Dtype],
    width: int,
    aligned: bool,
    n_parameters: int,
) -> Rows | None:
    """Return how rows are divided that fit on chip, or None if they do not.

    shape: (rows, elements of a row). dtypes: of the arrays whose rows stay on chip. width: elements
    of a slot, if arrays are aligned; else slots are single elements. n_parameters: 1 for scale, 2
    for scale and bias.
    """
    if not aligned or shape[1] < width:
        width = 1
    few = width == VEC_NBYTES // 2 and device.capability >= ASYNC_COPIES
    if few and (shape[1] % width == 0 or n_parameters == 1):
        rows = _rows_on_chip(device, shape, dtypes, width, n_parameters, by_warps=True)
        if rows is not None:
            return rows
    return _rows_on_chip(device, shape, dtypes, width, n_parameters, by_warps=False)


def _rows_on_chip(
    device: Device,
    shape: tuple[int, int],
    dtypes: Sequence[Dtype],
    width: int,
    n_parameters: int,
    by_warps: bool,
) -> Rows | None:
    """Return rows that fit on chip, or None; by_warps: a warp's slots are neighbours in the row.

    shape: (rows, elements of a row). dtypes: of the arrays whose rows stay on chip. width: elements
    of a slot, 1 or more. n_parameters: 1 for scale, 2 for scale and bias. Two stages let the next
    row be copied while one is used.
    """
    sizes = tuple(dtype.itemsize for dtype in dtypes)
    threads, depth = _division(shape[1], width, _most_columns(dtypes, width), by_warps)
    resident = SLOT_THREADS if width > 1 else ELEMENT_THREADS
    most_threads = min(STAGED_THREADS, resident)
    if threads > most_threads or (by_warps and threads < WARP):
        return None
    nbytes = PARAMETERS[by_warps][n_parameters] * max(computed_in(t).itemsize for t in dtypes)
    one = Rows(*shape, sizes, width, threads, 1, depth, resident, 1, nbytes, by_warps)
    two = replace(one, stages=2)
    few = most_threads // threads <= FEW_GROUPS[by_warps]
    alone = few and two.shared_nbytes <= device.max_shared_nbytes
    row = two if width == 1 or alone else one
    groups = _groups(row, device)
    return replace(row, groups=groups) if groups else None


def _division(length: int, width: int, most: int, by_warps: bool) -> tuple[int, int]:
    """Return the threads of a row, and how many slots of `width` elements each has.

    length: elements of a row. most: elements of a thread. by_warps: a warp's slots are neighbours
    in the row. Rows that do not begin with slots have up to 2 width - 2 elements outside of them,
    each with a thread of its own.
    """
    if length % width == 0:
        return _threads(length, width, most, 1)
    least = 2 * width - 2
    return _threads(length, width, most if by_warps else most // 2, least)


def _most_columns(dtypes: Sequence[Dtype], width: int) -> int:
    """Return how many columns a thread has at most."""
    columns = VECTOR_COLUMNS if width > 1 else SINGLE_COLUMNS
    return columns[max(computed_in(dtype).itemsize for dtype in dtypes)]


def _threads(length: int, width: int, most: int, least: int) -> tuple[int, int]:
    """Return the threads of a row, and how many slots of `width` elements each has.

    length: elements of a row. A thread has at most `most` elements; there are at least `least`
    threads, and whole warps of them, or, of slots, also a power of 2 below a warp.
    """
    threads = max(least, ceil_div(length, most))
    if width > 1 and threads <= WARP:
        threads = 1 << (threads - 1).bit_length()
    else:
        threads = align_up(threads, WARP)
    return threads, max(1, ceil_div(length // width, threads))


def _groups(row: Rows, device: Device) -> int:
    """Return the groups of a block, in whole warps; 0 if none fits.

    They are as many as shared memory and registers hold, or as there are rows for.
    """
    least = max(1, WARP // row.threads)
    shared_nbytes = device.max_shared_nbytes - (row.shared_nbytes - row.row_nbytes)
    most = min(STAGED_THREADS, row.resident) // row.threads
    most = min(most, shared_nbytes // row.row_nbytes)
    if row.width == 1 and row.threads > WARP:
        most = min(most, 1)  # such a group meets at barriers of the block
    if most < least:
        return 0
    wanted = ceil_div(row.count, device.multiprocessors)
    return max(least, min(most, wanted) // least * least)
