# SPDX-License-Identifier: MIT
"""Lists of tensors as chunks, in tables that travel by value: algorithm/multi_tensor.cuh.

Their Euclidean norm: algorithm/l2_norm.cuh.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .. import facts
from ..declare.schema import Spec
from ..dtypes import UINT8
from ..plan import MAX_GRID, Launch, Pointers, ScratchMemory, by_value, ceil_div

Listed = Sequence[Spec | None]
MakeLaunch = Callable[[int, tuple[object, ...]], Launch]  # of a grid and the kernel's arguments


@dataclass(frozen=True)
class Columns:
    """Several lists of the same tensors for one table of addresses: Columns in the kernels' header.

    `at` has for each list of the kernel its place in `lists`, or -1 where it is absent.
    """

    lists: tuple[Listed, ...]
    at: tuple[int, ...]
    n_pointers: int  # that the table has room for
    are_written: bool

    @classmethod
    def of(
        cls, inputs: Sequence[Listed], outputs: Mapping[int, Listed], n_pointers: int
    ) -> Columns:
        """Inputs, then outputs by the places of the inputs that they replace.

        Outputs in place of their inputs take no room of their own. n_pointers: addresses that the
        table of a launch has room for, those of all lists together.
        """
        lists: list[Listed] = []
        at: list[int] = []
        for items in inputs:
            at.append(len(lists) if _is_there(items) else -1)
            lists += [items] if _is_there(items) else []
        for place, items in outputs.items():
            if not _is_there(items):
                at.append(-1)
            elif all(spec is None or spec.in_place for spec in items):
                at.append(at[place])
            else:
                at.append(len(lists))
                lists.append(items)
        are_written = any(map(_is_there, outputs.values()))
        return cls(tuple(lists), tuple(at), n_pointers, are_written)

    @property
    def most(self) -> int:
        """Tensors of each list that there is room for."""
        return self.n_pointers // len(self.lists)


def _is_there(items: Listed) -> bool:
    return any(spec is not None for spec in items)


@dataclass(frozen=True)
class Batch:
    """The tensors of one launch: their places in the list, how many chunks they are, and sizes."""

    members: tuple[int, ...]
    n_chunks: int
    sizes: np.void
    capacity: int

    @classmethod
    def of(cls, members: tuple[int, ...], sizes: Sequence[int], chunk: int, capacity: int) -> Batch:
        """Make the batch of the tensors at the places `members`, of `sizes` elements each.

        chunk: elements of a chunk. capacity: tensors that the table has room for; entries behind
        the last one hold the number of all chunks.
        """
        ends = list(itertools.accumulate(ceil_div(size, chunk) for size in sizes))
        n_chunks = ends[-1] if ends else 0
        first_chunk = np.full(capacity + 1, n_chunks, np.uint32)
        first_chunk[: len(ends)] = [0, *ends[:-1]] if ends else []
        padded = np.zeros(capacity, np.int64)
        padded[: len(sizes)] = sizes
        table = by_value(facts.TensorSizes.of(capacity), size=padded, first_chunk=first_chunk)
        return cls(members, n_chunks, table, capacity)

    def pointers(self, specs: Sequence[Spec | None]) -> Pointers:
        """Their addresses, from all arrays of the list."""
        return Pointers(tuple(specs[i] for i in self.members), self.capacity)

    def addresses(self, columns: Columns) -> tuple[Pointers, np.void]:
        """The addresses of several lists in one table, and where each of them begins in it."""
        specs = (items[i] for items in columns.lists for i in self.members)
        layout = facts.Columns.of(len(columns.at))
        at = by_value(layout, at=columns.at, n_tensors=len(self.members))
        return Pointers(tuple(specs), columns.n_pointers), at

    def starts(self, starts: Sequence[int]) -> np.void:
        """The launch argument that says where each tensor of the batch begins in a joined array.

        starts: where each tensor of the whole list begins there.
        """
        padded = np.zeros(self.capacity, np.int64)
        padded[: len(self.members)] = [starts[i] for i in self.members]
        return by_value(facts.TensorStarts.of(self.capacity), at=padded)


def batches(
    sizes: Sequence[int],
    chunk: int,
    capacity: int,
    most: int | None = None,
    most_chunks: int | None = None,
) -> Iterator[Batch]:
    """The tensors of a list that have elements, in order, divided among launches.

    sizes: elements of each tensor. chunk: elements that a block takes.
    Tables of sizes have room for `capacity` tensors. A launch gets at most `most` of them, and at
    most `most_chunks` chunks, or one tensor that has more.
    """
    members = [i for i, size in enumerate(sizes) if size]
    for run in _runs(members, sizes, chunk, most or capacity, most_chunks or MAX_GRID[0]):
        yield Batch.of(run, [sizes[i] for i in run], chunk, capacity)


def _runs(
    members: Sequence[int], sizes: Sequence[int], chunk: int, most: int, most_chunks: int
) -> Iterator[tuple[int, ...]]:
    """Runs of at most `most` tensors and `most_chunks` chunks, or of one tensor."""
    run: list[int] = []
    n_chunks = 0
    for i in members:
        own = ceil_div(sizes[i], chunk)
        if run and (len(run) == most or n_chunks + own > most_chunks):
            yield tuple(run)
            run, n_chunks = [], 0
        run.append(i)
        n_chunks += own
    if run:
        yield tuple(run)


def one_or_more_batches(xs: Sequence[Spec], chunk_nbytes: int, capacity: int) -> list[Batch]:
    """The batches of a list of one dtype; one without tensors where none has elements.

    chunk_nbytes: bytes that a block takes. capacity: tensors of a launch.
    """
    chunk = chunk_nbytes // xs[0].dtype.itemsize
    listed = list(batches([x.size for x in xs], chunk, capacity))
    return listed or [Batch.of((), (), chunk, capacity)]


def l2_norm(
    parts: Sequence[Batch],
    xs: Sequence[Spec],
    most_blocks: int,
    launch: MakeLaunch,
    scratch: ScratchMemory,
    *results: object,
) -> tuple[Launch, ...]:
    """The norm of a list: a launch a batch, of `most_blocks` at most; the last writes `results`.

    The kernel takes addresses, sizes, partial sums, a ticket, Partials, and the results.
    """
    blocks = [max(1, min(batch.n_chunks, most_blocks)) for batch in parts]
    ticket = scratch.zeros(1, np.uint32)
    partials = scratch.take(facts.SUMS_NBYTES * sum(blocks), UINT8)
    firsts = itertools.accumulate(blocks, initial=0)
    launches = []
    for batch, n, first in zip(parts, blocks, firsts, strict=False):
        n_in_all = sum(blocks) if batch is parts[-1] else 0
        place = by_value(facts.Partials, first=first, n_in_all=n_in_all)
        args = (batch.pointers(xs), batch.sizes, partials, ticket, place, *results)
        launches.append(launch(n, args))
    return tuple(launches)
