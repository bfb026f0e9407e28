# SPDX-License-Identifier: MIT
"""Adaptive sums: at each level ranks swap their tensors with a partner and combine both."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...declare.schema import Spec
from ...dtypes import FLOAT64, Dtype
from ...plan import (
    SCRATCH_ALIGNMENT,
    Config,
    Launch,
    Plan,
    Pointers,
    Scratch,
    ScratchMemory,
    Step,
    Work,
    align_up,
    slots,
)
from ...planning.multi_tensor import Batch, batches
from .facts import CAPACITY, CHUNK_NBYTES, DOTS, SCALES, THREADS

# Of the tensors, where the partner's go in bytes, and the level: what swaps them.
Swap = Callable[[Sequence[Spec], Sequence[int], int], object]


def slots_of(dtype: Dtype) -> dict[str, str]:
    """The kernels' slots."""
    return slots(T=dtype, CAPACITY=CAPACITY)


@dataclass(frozen=True)
class _Buffers:
    """Scratch memory: the partner's tensors, dot products, scales."""

    others: Scratch
    partials: Scratch
    scales: Scratch
    starts: tuple[int, ...]  # of each tensor among the others, in elements


def plan(
    swap: Swap, rank: int, levels: Sequence[int], xs: Sequence[Spec], ys: Sequence[Spec]
) -> Plan:
    """One swap and three launches a level, for as many tensors as a launch takes."""
    scratch = ScratchMemory()
    itemsize = xs[0].dtype.itemsize
    tables = list(batches([x.size for x in xs], CHUNK_NBYTES // itemsize, CAPACITY))
    room = [align_up(x.nbytes, SCRATCH_ALIGNMENT) // itemsize for x in xs]
    *starts, total = itertools.accumulate(room, initial=0)
    most_chunks = max((batch.n_chunks for batch in tables), default=0)
    buffers = _Buffers(
        scratch.take(total, xs[0].dtype),
        scratch.take(DOTS * most_chunks, FLOAT64),
        scratch.take(SCALES * CAPACITY, FLOAT64),
        tuple(starts),
    )
    steps: list[Step] = []
    for number, level in enumerate(levels):
        own = ys if number else xs
        table = Pointers(tuple(own), max(1, len(own)))
        swapping = swap(own, [start * itemsize for start in starts], level)
        steps.append(Work("call", (swapping, table, buffers.others)))
        is_first = not rank & level
        for batch in tables:
            steps += _combine(batch, own, ys, buffers, is_first)
    return scratch.plan(*steps)


def _combine(
    batch: Batch, own: Sequence[Spec], results: Sequence[Spec], buffers: _Buffers, is_first: bool
) -> Iterator[Launch]:
    """Dot products, scales and sums of the tensors of a batch."""
    binding = slots_of(own[0].dtype)
    chunks, n = Config((batch.n_chunks,), (THREADS,)), np.int32(len(batch.members))
    starts, others = batch.starts(buffers.starts), buffers.others
    partials, scales = buffers.partials, buffers.scales
    dots = (batch.pointers(own), batch.sizes, starts, others, partials, n)
    yield Launch("adasum_all_reduce__dots", chunks, dots, binding)
    each = Config((len(batch.members),), (THREADS,))
    yield Launch("adasum_all_reduce__scales", each, (batch.sizes, partials, scales), binding)
    tensors = (batch.pointers(own), batch.pointers(results), batch.sizes, starts)
    args = (*tensors, others, scales, n, is_first)
    yield Launch("adasum_all_reduce__combine", chunks, args, binding)
