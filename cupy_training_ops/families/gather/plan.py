# SPDX-License-Identifier: MIT
"""Plans that add slices to rows: sorted and summed in order, or with atomics.

A batch has K slices of dY and G rows of dX, W elements each. The kernels are those of
gather/radix_sort.cuh and gather/segmented_sum.cuh. Where elements each stay in their column, the
rows that they go to are all that is sorted: gather/columns.cuh and gather/column_sums.cuh.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...declare.schema import Spec
from ...dtypes import FLOAT64, Dtype, element_type
from ...facts import WARP
from ...plan import (
    VEC_NBYTES,
    Config,
    Device,
    Launch,
    Plan,
    Scratch,
    ScratchMemory,
    align_up,
    by_value,
    ceil_div,
)
from . import facts
from .facts import (
    ATOMIC_ITEMS,
    BUCKET_ROWS,
    BUCKETS,
    COLUMNS,
    FANOUT,
    PADDED_ROWS,
    RUN,
    SORT_THREADS,
    STARTS_ROWS,
    SUM_COLUMNS,
    THREADS,
    TILE_ROWS,
)

if TYPE_CHECKING:
    from ...call.op import Op

LONG_SORT = 2**20  # slices from which on a sort takes longer than its launches
LONG_DIGIT_BITS = 8  # of a long sort with more than two digits: longer runs are worth another pass
MANY_ROWS = 2**20  # rows from which on there are enough blocks of STARTS_ROWS for a GPU
DENSE, SPARSE = 4, 16  # slices a row, rows a slice: up to these, reading all beats searches

ROWS = 4  # rows whose sums one thread makes, where these have few slices
MAX_DIGIT_BITS = facts.RADIX.bit_length() - 1
SORT_BLOCKS = 2  # of a multiprocessor
MAX_LOOKS = 2**16  # reads of indices, by all elements of dX, that cost less than a second launch
MAX_ATOMIC = 2**22  # elements of dY (of dX where sums are wider) for which atomics beat a sort
MAX_32_BIT = 2**32 - 1

# Of sorts column by column:
COLUMN_BLOCKS = 2  # of a multiprocessor
MAX_COLUMN_NBYTES = 4  # of an element
MIN_COLUMN_ROWS = 4 * TILE_ROWS  # of dY, below which counts of columns cost more than their sums
MAX_OF_BUCKET = 2**14  # rows of dY a bucket, which a warp adds up one after the other


class Kernels(NamedTuple):
    """Names of one operator's kernels, which compute a slice's row of dX from its indices.

    few: adds without a sort. keys: makes sort entries, and counts of their first digit. sort: makes
    and sorts all entries in one block. atomic: adds with atomics.
    """

    few: str
    keys: str
    sort: str
    atomic: str


KERNELS = {
    "GatherGrad": Kernels(
        "gather_grad__few", "gather_grad__keys", "gather_grad__sort", "gather_grad__atomic"
    ),
    "GatherNDGrad": Kernels(
        "gather_nd_grad__few",
        "gather_nd_grad__keys",
        "gather_nd_grad__sort",
        "gather_nd_grad__atomic",
    ),
    "GatherElementsGrad": Kernels(
        "gather_elements_grad__few",
        "gather_elements_grad__keys",
        "gather_elements_grad__sort",
        "gather_elements_grad__atomic",
    ),
}


@dataclass(frozen=True)
class Sizes:
    """B batches of K slices of dY and of G rows of dX, W elements each."""

    B: int
    K: int
    G: int
    W: int

    @property
    def key(self) -> Dtype:
        """Return the type of row numbers and slice numbers: uint32 if both fit, else uint64."""
        return np.dtype(np.uint32 if max(self.K, self.G) <= MAX_32_BIT else np.uint64)

    @property
    def argument(self) -> np.void:
        """Return the sizes as the kernels' struct."""
        return by_value(facts.Sizes, n_slices=self.K, n_rows=self.G, width=self.W)


@dataclass(frozen=True)
class Digit:
    """One digit of the sort keys 0 .. G: key >> shift & (2^bits - 1)."""

    shift: int
    bits: int


def digits(rows: int, slices: int, most: int) -> tuple[Digit, ...]:
    """Split keys 0 .. rows into as few digits of `most` bits as possible, all about as wide.

    12 bits and most = 8: two digits of 6 bits. Long sorts that need three digits or more have
    digits of LONG_DIGIT_BITS instead.
    """
    bits = rows.bit_length()
    is_long = slices >= LONG_SORT and bits > 2 * most
    n_digits = ceil_div(bits, LONG_DIGIT_BITS if is_long else most)
    width = ceil_div(bits, n_digits)
    return tuple(Digit(shift, min(width, bits - shift)) for shift in range(0, bits, width))


def levels(slices: int, fanout: int) -> tuple[int, ...]:
    """Count the nodes of each level of partial sums: each level has 1 / fanout of the one below.

    The last level has at most 2 fanout nodes, which one thread adds. 1000 slices and fanout 8:
    (125, 15).
    """
    counts = [slices]
    while counts[-1] > 2 * fanout:
        counts.append(counts[-1] // fanout)
    return tuple(counts[1:])


def n_sums(counts: tuple[int, ...]) -> int:
    """Count the partial sums: one for each node, two for a node of the first level.

    A first-level node whose slices go to several rows has the sums of its first and its last row.
    """
    return sum(counts) + sum(counts[:1])


def rows_of_a_thread(sizes: Sizes, fanout: int) -> int:
    """Return how many rows a thread sums: ROWS if they have few slices on average, else 1."""
    return ROWS if fanout * sizes.G > sizes.K * ROWS else 1


def are_few(sizes: Sizes) -> bool:
    """Return True if one launch suffices, in which every element of dX reads every index."""
    return sizes.K <= THREADS and sizes.K * sizes.B * sizes.G * sizes.W <= MAX_LOOKS


def sums_parents(sizes: Sizes, runs: int) -> bool:
    """Return True if one launch sums two levels: its last block of a parent adds the parent.

    Needs one batch, and at most FANOUT nodes a block. runs: packets of a slice.
    """
    return sizes.B == 1 and items_grid(1, 1, runs, 1)[0].block[1] <= FANOUT


def alone_nbytes(rows: int) -> int:
    """Return the shared memory of a block that sorts all entries, `rows` of them a thread.

    It has counts of digits by warp (2 bytes) and in all (4), two buffers of entries (8), ranks (2).
    """
    warps = facts.ALONE_THREADS // WARP
    counts = 2 * warps * facts.RADIX + 4 * (facts.RADIX + warps)
    return counts + (8 + 8 + 2) * rows * facts.ALONE_THREADS


def packet_size(width: int, dy: Spec, dx: Spec) -> int:
    """Return the elements of a packet: 16 bytes if rows are aligned multiples of them, else 1."""
    n = VEC_NBYTES // dy.dtype.itemsize
    return n if width % n == 0 and dy.aligned and dx.aligned else 1


def items_grid(batches: int, n: int, runs: int, packets: int) -> tuple[Config, np.void]:
    """Return a grid and its struct Items for n items in each batch, of `runs` packets each.

    A thread has `packets` packets of one item, neighbouring threads (lanes) share it. `fold`
    batches lie along grid x, so that item numbers fit into 32 bits; the rest along grid z.
    """
    lanes = min(THREADS, 1 << (ceil_div(runs, packets) - 1).bit_length())
    items_a_block = THREADS // lanes
    column_blocks = ceil_div(runs, lanes * packets)
    fold = min(batches, max(1, MAX_32_BIT // n))
    grid = (
        ceil_div(fold * n, items_a_block) * column_blocks,
        1,
        ceil_div(batches, fold),
    )
    fields = {"n_batches": batches, "n": n, "fold": fold, "column_blocks": column_blocks}
    return Config(grid, (lanes, items_a_block)), by_value(facts.Items, **fields)


def one_each(n: int, a_block: int, threads: int = THREADS) -> Config:
    """Return a grid of one dimension for n elements, `a_block` of them in each block."""
    return Config((ceil_div(n, a_block),), (threads,))


@dataclass
class Scatter:
    """Builder of one call's plan, which collects launches.

    An entry of a sort is (row of dX, slice number), two keys of sizes.key.
    """

    op: Op
    device: Device
    sizes: Sizes
    index: Spec  # the indices
    dy: Spec  # slices that are added up
    dx: Spec  # the result, of rows
    target: tuple[object, ...]  # kernels' first arguments: indices, and how they name a row of dX
    scratch: ScratchMemory = field(default_factory=ScratchMemory)
    launches: list[Launch] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Set `acc`, the type of sums, and `slots`, the macros that kernels are compiled with."""
        self.acc = np.dtype(np.float64 if self.dy.dtype == FLOAT64 else np.float32)
        types = {"T": self.dy.dtype, "INDEX": self.index.dtype, "KEY": self.sizes.key}
        types["ACC"] = self.acc
        self.slots = {name: element_type(dtype).c_type for name, dtype in types.items()}

    @property
    def kernels(self) -> Kernels:
        """Return the operator's own kernels."""
        return KERNELS[self.op.name]

    def launch(self, symbol: str, config: Config, *args: object) -> None:
        """Add one launch."""
        self.launches.append(Launch(symbol, config, args, self.slots))

    @property
    def narrow(self) -> bool:
        """Return True if sums are wider than dX: atomics then need room for all of it."""
        return self.acc != self.dx.dtype

    @property
    def is_carried(self) -> bool:
        """Return True if entries have a slice itself (one element) in place of its number."""
        return (
            self.sizes.B == self.sizes.W == 1 and self.dy.dtype.itemsize <= self.sizes.key.itemsize
        )

    def prefers_atomics(self) -> bool:
        """Return True if atomics are quicker than sorting."""
        rows = max(self.sizes.K, self.sizes.G if self.narrow else 0)
        return self.sizes.B * rows * self.sizes.W <= MAX_ATOMIC

    def plan(self) -> Plan:
        """Return the plan of the launches so far."""
        return self.scratch.plan(*self.launches)

    def zero(self, target: Spec | Scratch, dtype: Dtype) -> None:
        """Plan zeros into `target`, which has dX's shape and this dtype."""
        n = self.dx.size * np.dtype(dtype).itemsize // self.dx.dtype.itemsize
        packet = VEC_NBYTES // self.dx.dtype.itemsize
        config = one_each(n, THREADS * facts.ZERO_VECS * packet)
        self.launch("gather__zero", config, target, n)

    def add_few(self) -> Plan:
        """Plan one launch in which each element of dX adds its slices; deterministic."""
        s, n = self.sizes, self.dx.size
        args = (*self.target, self.dy, self.dx, n, s.argument)
        self.launch(self.kernels.few, one_each(n, THREADS), *args)
        return self.plan()

    def add_slices(self) -> Plan:
        """Plan a sort by row and sums in that order; deterministic."""
        entries, s = self.sort(), self.sizes
        starts = self.scratch.take(s.G + 1, s.key)
        # Where each row's entries start is found by an own launch, or by blocks of sum_nodes.
        many = s.G >= MANY_ROWS and s.K <= DENSE * s.G and s.G <= SPARSE * s.K
        counts = levels(s.K, FANOUT)
        if many or not counts:
            config = one_each(s.G + 1, STARTS_ROWS if many else THREADS)
            symbol = "gather__starts__many" if many else "gather__starts"
            self.launch(symbol, config, entries, starts, s.K, s.G)
        n_starts = 0 if many else ceil_div(s.G + 1, THREADS)
        sums = self.scratch.take(s.B * n_sums(counts) * s.W, self.acc)
        self.sum_nodes(counts, entries, starts, sums, n_starts)
        self.sum_rows(counts, entries, starts, sums)
        return self.plan()

    def sort(self) -> Scratch:
        """Plan a stable sort of the (row, slice) entries by row; return them."""
        rows = ceil_div(self.sizes.K, facts.ALONE_THREADS)
        fits = alone_nbytes(rows) <= self.device.max_shared_nbytes
        if rows <= facts.ALONE_ROWS and fits and self.sizes.key.itemsize == 4:
            return self.sort_at_once(rows)
        return self.sort_by_passes()

    def sort_at_once(self, rows: int) -> Scratch:
        """Plan a sort by one block, `rows` entries a thread; return the sorted entries."""
        n, bits = self.sizes.K, self.sizes.G.bit_length()
        entries = self.scratch.take(2 * n, self.sizes.key)
        width = digits(self.sizes.G, n, MAX_DIGIT_BITS)[0].bits
        every = by_value(facts.AllDigits, n=n, rows=rows, bits=bits, width=width)
        config = Config((1,), (facts.ALONE_THREADS,), alone_nbytes(rows))
        dy = self.dy if self.is_carried else None
        args = (*self.target, dy, entries, every, self.sizes.G)
        self.launch(self.kernels.sort, config, *args)
        return entries

    def sort_by_passes(self) -> Scratch:
        """Plan a radix sort, two kernels a digit; return the sorted entries.

        The first counts a digit's values by block, the second moves entries to another buffer.
        """
        n, key = self.sizes.K, self.sizes.key
        is_long = n >= LONG_SORT
        items = facts.LONG_ITEMS if is_long else facts.SHORT_ITEMS
        tile = SORT_THREADS * items[key.itemsize]
        # Entries of a block: whole tiles, so many that SORT_BLOCKS a multiprocessor suffice.
        span = ceil_div(ceil_div(n, tile), SORT_BLOCKS * self.device.multiprocessors) * tile
        config = one_each(n, span, SORT_THREADS)
        entries, other = self.scratch.take(2 * n, key), self.scratch.take(2 * n, key)
        counts = self.scratch.take(config.grid[0] * facts.RADIX, key)
        for digit in digits(self.sizes.G, n, MAX_DIGIT_BITS):
            numbers = {"n": n, "span": span, "shift": digit.shift, "bits": digit.bits}
            step = by_value(facts.Pass, **numbers, blocks=config.grid[0])
            if digit.shift == 0:
                dy = self.dy if self.is_carried else None
                args = (*self.target, dy, entries, counts, step, self.sizes.G)
                self.launch(self.kernels.keys, config, *args)
            else:
                self.launch("gather__count", config, entries, counts, step)
            symbol = "gather__scatter__long" if is_long else "gather__scatter"
            self.launch(symbol, config, entries, other, counts, step)
            entries, other = other, entries
        return entries

    def sum_nodes(
        self,
        counts: tuple[int, ...],
        entries: Scratch,
        starts: Scratch,
        sums: Scratch,
        n_starts: int,
    ) -> None:
        """Plan partial sums level by level: counts[i] nodes of FANOUT^(i+1) sorted entries each.

        The first `n_starts` blocks of the first launch write `starts`, the first entry of each row.
        entries: (row, slice) sorted by row. sums: room for n_sums(counts) sums of W elements in
        each batch.
        """
        s, runs = self.sizes, self.sizes.W // self.packet
        dy = None if self.is_carried else self.dy
        symbol = "gather__sum_nodes" if self.packet > 1 else "gather__sum_nodes__scalar"
        merged = len(counts) > 1 and sums_parents(s, runs)
        for i, count in enumerate(counts):
            if merged and i == 1:  # the launch of level 0 has summed it
                continue
            config, items = items_grid(s.B, count, runs, 1)
            first = n_starts if i == 0 else 0
            blocks = config.grid[0] + first
            config = Config((blocks, *config.grid[1:]), config.block)
            above = counts[1] if merged and i == 0 else 0
            parents = by_value(facts.Parents, n=above, begin=counts[0])
            n_tickets = above * int(items["column_blocks"])
            tickets = self.scratch.zeros(n_tickets, np.uint32) if n_tickets else None
            level = by_value(
                facts.Level,
                unit=FANOUT ** (i + 1),
                begin=sum(counts[:i]),
                begin_below=sum(counts[: max(i - 1, 0)]),
                total=n_sums(counts),
            )
            nodes = (items, s.argument, level, parents, tickets)
            args = (dy, entries, sums, starts, *nodes, first)
            self.launch(symbol, config, *args)

    @property
    def packet(self) -> int:
        """Return the elements that a thread loads at once."""
        return packet_size(self.sizes.W, self.dy, self.dx)

    def sum_rows(
        self,
        counts: tuple[int, ...],
        entries: Scratch,
        starts: Scratch,
        sums: Scratch,
    ) -> None:
        """Plan the sums of all rows of dX, from partial sums and single entries.

        counts: nodes of each level of `sums`. entries: (row, slice) sorted by row. starts: the
        first entry of each row.
        """
        s, runs = self.sizes, self.sizes.W // self.packet
        dy = None if self.is_carried else self.dy
        rows = rows_of_a_thread(s, FANOUT)
        n_long = ceil_div(s.K, facts.LONG_ROW) if runs >= WARP else 0  # long rows, at most
        config, items = items_grid(s.B, n_long + ceil_div(s.G, rows), runs, 1)
        arrays = (dy, entries, starts, sums, self.dx, items, s.argument)
        numbers = rows, n_sums(counts), len(counts), n_long
        symbol = "gather__sum_rows" if self.packet > 1 else "gather__sum_rows__scalar"
        self.launch(symbol, config, *arrays, *numbers)

    def add_slices_atomically(self) -> Plan:
        """Plan atomic additions of slices; the order of additions, and so rounding, may vary."""
        s = self.sizes
        config, items = items_grid(s.B, s.K, s.W, ATOMIC_ITEMS)
        return self.atomic(self.kernels.atomic, config, items, s.argument)

    def atomic(self, symbol: str, config: Config, *args: object) -> Plan:
        """Plan zeros, then `symbol`, which adds dY atomically, then rounding if sums are wider.

        config: its grid and block. args: its last arguments, behind target, dY and the sums.
        """
        sums = self.scratch.take(self.dx.size, self.acc) if self.narrow else self.dx
        self.zero(sums, self.acc)
        self.launch(symbol, config, *self.target, self.dy, sums, *args)
        if self.narrow:
            sums_each = facts.ROUND_NBYTES // self.acc.itemsize
            config = one_each(self.dx.size, THREADS * sums_each)
            self.launch("gather__round", config, sums, self.dx, self.dx.size)
        return self.plan()


# ---- elements that each stay in their column -----------------------------------------------------


@dataclass(frozen=True)
class Columns:
    """R rows and C columns of dY, G rows and W columns of dX."""

    R: int
    C: int
    G: int
    W: int

    @property
    def buckets(self) -> int:
        """Return the buckets of a column: BUCKET_ROWS rows of dX each."""
        return ceil_div(self.G, BUCKET_ROWS)


def sums_nbytes(scatter: Scatter) -> int:
    """Return the bytes of shared memory for a block's sums: a bucket of each of its columns."""
    return SUM_COLUMNS * PADDED_ROWS * scatter.acc.itemsize


def columns_are_faster(scatter: Scatter, columns: Columns) -> bool:
    """Return True if to sort by columns is faster than to sort all elements together.

    scatter: the call. columns: rows and columns of dY and dX.
    """
    return (
        scatter.sizes.K >= LONG_SORT
        and scatter.dy.dtype.itemsize <= MAX_COLUMN_NBYTES
        and columns.R >= MIN_COLUMN_ROWS
        and columns.C >= COLUMNS
        and columns.buckets <= BUCKETS
        and MAX_OF_BUCKET * columns.buckets >= columns.R
        and sums_nbytes(scatter) <= scatter.device.max_shared_nbytes
    )


def add_columns(scatter: Scatter, columns: Columns) -> Plan:
    """Plan counts, a move to buckets and sums, column by column; deterministic.

    A bucket is BUCKET_ROWS rows of dX. Entries (row, element) of each column are sorted by bucket
    only; a warp then adds a bucket's in their order. scatter: the call. columns: dY as R rows of C
    columns, dX as G rows of W.
    """
    strips = ceil_div(columns.C, COLUMNS)
    blocks = max(1, COLUMN_BLOCKS * scatter.device.multiprocessors // strips)
    span = align_up(ceil_div(columns.R, blocks), TILE_ROWS)
    spans = ceil_div(columns.R, span)
    # Each tile fills its part of each bucket up to a multiple of RUN entries.
    completed = (RUN - 1) * columns.buckets * ceil_div(columns.R, TILE_ROWS)
    capacity = align_up(columns.R + completed, RUN)
    fields = {"rows": columns.R, "columns": columns.C, "span": span, "spans": spans}
    sort = by_value(facts.ColumnSort, **fields, capacity=capacity)
    entry = 2 * scatter.dy.dtype.itemsize
    entries = scatter.scratch.take(columns.C * capacity * entry, np.uint8)
    counts = scatter.scratch.take(columns.C * spans * BUCKETS, np.uint32)
    config = Config((strips * spans,), (COLUMNS * WARP,))
    args = (*scatter.target, counts, sort)
    scatter.launch("gather_elements_grad__count_buckets", config, *args)
    args = (*scatter.target, scatter.dy, counts, entries, sort)
    scatter.launch("gather_elements_grad__move_to_buckets", config, *args)
    grid = ceil_div(columns.W, SUM_COLUMNS) * columns.buckets
    config = Config((grid,), (SUM_COLUMNS * WARP,), sums_nbytes(scatter))
    sums = (entries, counts, scatter.dx, columns.G, columns.W, sort)
    scatter.launch("gather__sum_buckets", config, *sums)
    return scatter.plan()
