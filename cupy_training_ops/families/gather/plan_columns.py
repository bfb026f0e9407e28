# SPDX-License-Identifier: MIT
"""Plans for elements that each stay in their column: only the rows that they go to are sorted.

The kernels are those of gather/columns.cuh and gather/column_sums.cuh.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ... import plan as plans
from ...facts import WARP
from . import facts
from .facts import BUCKET_ROWS, BUCKETS, COLUMNS, RUN, SUM_COLUMNS, TILE_ROWS
from .plan import LONG_SORT, Scatter

BLOCKS = 2  # of a multiprocessor that sort columns
MAX_NBYTES = 4  # of an element
MIN_ROWS = 4 * TILE_ROWS  # of dY from which on sums cost more than the counts of columns
MAX_OF_BUCKET = 2**14  # rows of dY a bucket, which a warp adds up one after the other


@dataclass(frozen=True)
class Columns:
    """R rows and C columns of dY, G rows and W columns of dX."""

    R: int
    C: int
    G: int
    W: int

    @property
    def buckets(self) -> int:
        """Buckets of a column."""
        return plans.ceil_div(self.G, BUCKET_ROWS)


def sums_nbytes(scatter: Scatter) -> int:
    """Shared memory for the sums of a block's buckets."""
    return SUM_COLUMNS * (BUCKET_ROWS + 4) * scatter.acc.itemsize


def suits(scatter: Scatter, columns: Columns) -> bool:
    """Return True if columns are sorted sooner than all elements together."""
    return (
        scatter.sizes.K >= LONG_SORT
        and scatter.dy.dtype.itemsize <= MAX_NBYTES
        and columns.R >= MIN_ROWS
        and columns.C >= COLUMNS
        and columns.buckets <= BUCKETS
        and MAX_OF_BUCKET * columns.buckets >= columns.R
        and sums_nbytes(scatter) <= scatter.device.max_shared_nbytes
    )


def add_columns(scatter: Scatter, columns: Columns) -> plans.Plan:
    """Count, sort by bucket and sum column by column, in order."""
    strips = plans.ceil_div(columns.C, COLUMNS)
    blocks = max(1, BLOCKS * scatter.device.multiprocessors // strips)
    span = plans.align_up(plans.ceil_div(columns.R, blocks), TILE_ROWS)
    spans = plans.ceil_div(columns.R, span)
    completed = (RUN - 1) * columns.buckets * plans.ceil_div(columns.R, TILE_ROWS)
    capacity = plans.align_up(columns.R + completed, RUN)
    fields = {"rows": columns.R, "columns": columns.C, "span": span, "spans": spans}
    sort = plans.by_value(facts.ColumnSort, **fields, capacity=capacity)
    entry = 2 * scatter.dy.dtype.itemsize
    entries = scatter.scratch.take(columns.C * capacity * entry, np.uint8)
    counts = scatter.scratch.take(columns.C * spans * BUCKETS, np.uint32)
    config = plans.Config((strips * spans,), (COLUMNS * WARP,))
    args = (*scatter.target, counts, sort)
    scatter.launch("gather_elements_grad__count_buckets", config, *args)
    args = (*scatter.target, scatter.dy, counts, entries, sort)
    scatter.launch("gather_elements_grad__move_to_buckets", config, *args)
    grid = plans.ceil_div(columns.W, SUM_COLUMNS) * columns.buckets
    config = plans.Config((grid,), (SUM_COLUMNS * WARP,), sums_nbytes(scatter))
    sums = (entries, counts, scatter.dx, columns.G, columns.W, sort)
    scatter.launch("gather__sum_buckets", config, *sums)
    return scatter.plan()
