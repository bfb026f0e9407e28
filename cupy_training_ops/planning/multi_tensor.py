# SPDX-License-Identifier: MIT
"""Lists of tensors as chunks, in tables that travel by value: algorithm/multi_tensor.cuh."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..plan import MAX_PARAMETER_NBYTES, Pointers, by_value, ceil_div
from ..schema import Spec

SCALARS_NBYTES = 64  # of a launch's parameters beside its tables, at most


def capacity(n_lists: int) -> int:
    """Tensors a launch knows by value: their addresses in each list, and its TensorSizes."""
    return (MAX_PARAMETER_NBYTES - 4 - SCALARS_NBYTES) // (8 * n_lists + 12)


@dataclass(frozen=True)
class Batch:
    """The tensors of one launch: their places in the list, how many chunks they are, and sizes."""

    members: tuple[int, ...]
    n_chunks: int
    sizes: np.void
    capacity: int

    def pointers(self, specs: Sequence[Spec | None]) -> Pointers:
        """Their addresses, from all arrays of the list."""
        return Pointers(tuple(specs[i] for i in self.members), self.capacity)

    def starts(self, starts: Sequence[int]) -> np.void:
        """Where they begin in an array that joins the whole list, as a launch argument."""
        padded = np.zeros(self.capacity, np.int64)
        padded[: len(self.members)] = [starts[i] for i in self.members]
        return by_value(at=padded)


def batches(sizes: Sequence[int], chunk: int, capacity: int) -> Iterator[Batch]:
    """The tensors of a list that have elements, in order, at most `capacity` of them a launch.

    Every element belongs to one chunk of one batch: a table is made anew for every launch.
    """
    members = [i for i, size in enumerate(sizes) if size]
    for first in range(0, len(members), capacity):
        some = tuple(members[first : first + capacity])
        yield batch(some, [sizes[i] for i in some], chunk, capacity)


def tables(xs: Sequence[Spec], chunk_nbytes: int, capacity: int) -> list[Batch]:
    """The batches of a list of one dtype; one without tensors where none has elements."""
    chunk = chunk_nbytes // xs[0].dtype.itemsize
    found = list(batches([x.size for x in xs], chunk, capacity))
    return found or [batch((), (), chunk, capacity)]


def batch(members: tuple[int, ...], sizes: Sequence[int], chunk: int, capacity: int) -> Batch:
    """One launch's table; entries after the last tensor hold the number of all chunks."""
    ends = list(itertools.accumulate(ceil_div(size, chunk) for size in sizes))
    n_chunks = ends[-1] if ends else 0
    first_chunk = np.full(capacity + 1, n_chunks, np.uint32)
    first_chunk[: len(ends)] = [0, *ends[:-1]] if ends else []
    padded = np.zeros(capacity, np.int64)
    padded[: len(sizes)] = sizes
    return Batch(members, n_chunks, by_value(size=padded, first_chunk=first_chunk), capacity)
