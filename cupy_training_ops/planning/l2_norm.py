# SPDX-License-Identifier: MIT
"""The Euclidean norm of a list of tensors: algorithm/l2_norm.cuh."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from ..declare.schema import Spec
from ..dtypes import UINT8
from ..facts import SUMS_NBYTES, Partials
from ..plan import Launch, ScratchMemory, by_value
from .multi_tensor import Batch

MakeLaunch = Callable[[int, tuple[object, ...]], Launch]  # of a grid and the kernel's arguments


def l2_norm(
    tables: Sequence[Batch],
    xs: Sequence[Spec],
    most_blocks: int,
    launch: MakeLaunch,
    scratch: ScratchMemory,
    *results: object,
) -> tuple[Launch, ...]:
    """A launch for each table, of at most so many blocks; `results` are where the last one writes.

    The kernel takes addresses, sizes, partial sums, a ticket, Partials, and the results.
    """
    blocks = [max(1, min(table.n_chunks, most_blocks)) for table in tables]
    ticket, partials = scratch.zeros(1, np.uint32), scratch.take(SUMS_NBYTES * sum(blocks), UINT8)
    firsts = itertools.accumulate(blocks, initial=0)
    launches = []
    for table, n, first in zip(tables, blocks, firsts, strict=False):
        n_in_all = sum(blocks) if table is tables[-1] else 0
        place = by_value(Partials, first=first, n_in_all=n_in_all)
        args = (table.pointers(xs), table.sizes, partials, ticket, place, *results)
        launches.append(launch(n, args))
    return tuple(launches)
