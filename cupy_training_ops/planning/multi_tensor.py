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

Listed = Sequence[Spec | None]  # a list of tensors; None is missing
MakeLaunch = Callable[[int, tuple[object, ...]], Launch]  # of a grid and the kernel's arguments


@dataclass(frozen=True)
class Columns:
    """Several lists of the same number of tensors, whose addresses a launch has in one table."""

    lists: tuple[Listed, ...]
    at: tuple[int, ...]  # for each list of the kernel its index in `lists`; -1: absent
    n_pointers: int  # addresses that the table has room for
    are_written: bool  # an output is there

    @classmethod
    def of(
        cls, inputs: Sequence[Listed], outputs: Mapping[int, Listed], n_pointers: int
    ) -> Columns:
        """Make columns of the inputs, then the outputs.

        outputs: by the index of the input that each replaces; one in its very arrays takes no room
        of its own. n_pointers: addresses of all lists that the table of a launch has room for.
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
        """Return of how many tensors a launch's table has room for the addresses in all lists."""
        return self.n_pointers // len(self.lists)


def _is_there(items: Listed) -> bool:
    """Return True if a list has a tensor."""
    return any(spec is not None for spec in items)


@dataclass(frozen=True)
class Batch:
    """The tensors of one launch, divided into chunks, each for a block."""

    members: tuple[int, ...]  # indices in the whole list
    n_chunks: int  # of all of them
    sizes: np.void  # struct TensorSizes: elements of each, and its first chunk
    capacity: int  # tensors that the struct has room for

    @classmethod
    def of(cls, members: tuple[int, ...], sizes: Sequence[int], chunk: int, capacity: int) -> Batch:
        """Make the batch of the tensors with indices `members`; sizes[i]: elements of the i-th.

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
        """Return the launch argument with their addresses; specs: the whole list."""
        return Pointers(tuple(specs[i] for i in self.members), self.capacity)

    def addresses(self, columns: Columns) -> tuple[Pointers, np.void]:
        """Return two launch arguments: the addresses of these tensors in all lists, list after
        list, and struct Columns, which says where in them each list begins."""
        specs = (items[i] for items in columns.lists for i in self.members)
        layout = facts.Columns.of(len(columns.at))
        at = by_value(layout, at=columns.at, n_tensors=len(self.members))
        return Pointers(tuple(specs), columns.n_pointers), at

    def starts(self, starts: Sequence[int]) -> np.void:
        """Return the launch argument with where these tensors begin in an array that joins all.

        starts: the first element there of each tensor of the whole list.
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
    """Yield a batch for each launch: the tensors of a list that have elements, in order.

    sizes: elements of each tensor. chunk: elements of a chunk. capacity: tensors that a launch's
    table of sizes has room for. most, most_chunks: tensors and chunks of a launch at most (None:
    `capacity`, and blocks of a grid); one tensor may have more chunks.
    """
    members = [i for i, size in enumerate(sizes) if size]
    for run in _runs(members, sizes, chunk, most or capacity, most_chunks or MAX_GRID[0]):
        yield Batch.of(run, [sizes[i] for i in run], chunk, capacity)


def _runs(
    members: Sequence[int], sizes: Sequence[int], chunk: int, most: int, most_chunks: int
) -> Iterator[tuple[int, ...]]:
    """Yield the indices `members` in runs of at most `most` tensors and `most_chunks` chunks, or of
    one tensor. chunk: its elements; sizes: elements of each tensor, by index."""
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
    """Return the batches of a list of one dtype; an empty one if no tensor has elements.

    chunk_nbytes: bytes of a chunk. capacity: tensors of a launch at most.
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
    """Return the launches for the norm of a list of tensors, one a batch; the last writes it.

    parts: the batches. xs: all tensors. most_blocks: of a launch. launch: makes one of a grid and
    (addresses, sizes, partial sums, ticket, Partials, *results). scratch: where sums are reserved.
    results: arguments for what is done with the norm.
    """
    blocks = [max(1, min(batch.n_chunks, most_blocks)) for batch in parts]
    ticket = scratch.zeros(1, np.uint32)  # by which blocks learn that they are the last
    partials = scratch.take(facts.SUMS_NBYTES * sum(blocks), UINT8)
    firsts = itertools.accumulate(blocks, initial=0)
    launches = []
    for batch, n, first in zip(parts, blocks, firsts, strict=False):
        n_in_all = sum(blocks) if batch is parts[-1] else 0
        place = by_value(facts.Partials, first=first, n_in_all=n_in_all)
        args = (batch.pointers(xs), batch.sizes, partials, ticket, place, *results)
        launches.append(launch(n, args))
    return tuple(launches)
