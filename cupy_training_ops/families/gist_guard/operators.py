# SPDX-License-Identifier: MIT
"""An encoder of activations that says, in the same pass, how far its codes are off."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import numpy as np

from ...declare.schema import Attribute, Input, Output, Spec, boolean, shape
from ...declare.type_rows import Types
from ...dtypes import FLOAT32, FLOATS, UINT8
from ...errors import ArgumentError, refuse
from ...facts import WARP
from ...frame.op import Op, slots
from ...plan import Config, Device, Launch, Plan, Scratch, ScratchMemory, align_up, ceil_div
from ..gist.facts import BOX
from .facts import TILE_LANES

Grouping = tuple[int, int, int]

THREADS = 256
NBYTES = 64  # of elements a thread has in flight
BLOCKS = 8  # a multiprocessor, of launches whose blocks take one span after another
WARPS = 16  # a multiprocessor, of columns
LEAST_ROWS = 64  # of a span of columns
PART_TILES = 1024  # of a run that a warp adds up, or more: so many parts a multiprocessor are many
PARTS = 64
MOST_ACROSS = 8  # groups that a block merges
TOTALS, MOMENTS = 5, 3  # doubles in structs of cuda_src/gist_guard/sums.cuh


def grouping(value: object) -> Grouping | None:
    """Three lengths (outer, groups, inner), or None or () for none."""
    lengths = () if value is None else shape(value)
    if not lengths:
        return None
    if len(lengths) != 3:
        raise ArgumentError(f"expected three lengths, got {len(lengths)}")
    outer, groups, inner = lengths
    return outer, groups, inner


class GistGuardedMsfp15Encoder(Op):
    """MSFP15 with a guard: Y = that of GistPackMsfp15Encoder with keep_sign, guard = its error.

    Q is what Y decodes to. guard has four numbers; the first three are in units of 4^(E - 127), E
    the largest of all tiles, so that no square overflows or vanishes:

        guard[0]   error: the sum of (X - Q)^2
        guard[1]   tile deviation: the sum of (X - mean of its tile)^2, tiles of 8
        guard[2]   group deviation: the sum of (X - mean of its group)^2
        guard[3]   worst group: the largest error over deviation of a group

    Groups are those that a consumer centres. grouping is (A, C, B), A C B = n: group c is all
    elements [a, c, b] of X as an array of that shape. Layer, RMS, group and instance norm over
    runs of B elements: (1, n / B, B); features of a linear layer: (n / C, C, 1); channels of a
    convolution or batch norm: (N, C, H W). Without grouping guard[2] and guard[3] are 0.

    A group without error counts 0; one with error that does not deviate, or with 2^32 times its
    deviation and more, counts infinity. If a tile is not finite (GistPackMsfp15Encoder says which),
    guard is (infinity, 0, 0, infinity), whatever keep_nonfinite is. So
    `guard[0] <= limit guard[1]` is decided rightly for every X.

    Means are taken from a number of the tile or group, so that large ones lose no digits; sums are
    added in an order that follows from shapes, alignment and the GPU. There a group of one column
    whose rows differ by 2^50 and more may look worse than it is, never better.

    X is read once where B is 8 or more, or A = 1, or B = 1 and C a multiple of 8; else a second
    launch reads X and Y. Groups in several places are merged by a last launch.

    Memory: a workspace of 24 bytes for each run of B elements, unless A = 1, and for each 8,192
    elements of longer runs; for each column and span of at least 64 rows; and 40 a block. Without
    the output Y, what it takes where Y is read.

    Source: Darvish Rouhani et al., "Pushing the Limits of Narrow Precision Inferencing at Cloud
    Scale with Microsoft Floating Point", NeurIPS 2020; Chan, Golub and LeVeque, "Algorithms for
    Computing the Sample Variance", 1983.
    """

    domain = "cupy_training_ops"
    inputs = (Input("X", "T", shape="any shape"),)
    outputs = (
        Output(
            "Y",
            "uint8",
            shape="shape of X where its size n is a multiple of 8",
            doc="else shape (8 ceil(n / 8),), the last tile padded with zeros",
        ),
        Output("guard", "float32", shape="shape (4,)"),
    )
    attributes = (
        Attribute(
            "keep_nonfinite",
            boolean,
            False,
            doc="give a tile that is not finite E = 255, so that it decodes to NaN",
        ),
        Attribute("grouping", grouping, None, doc="(A, C, B) as above"),
    )
    types: ClassVar[Types] = {"T": FLOATS}
    runs_empty = True
    keep_nonfinite: bool
    grouping: Grouping | None

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        if self.grouping is not None and math.prod(self.grouping) != x.size:
            expected = f"lengths whose product is the {x.size} elements of X"
            refuse(self.name, "grouping", expected, f"{self.grouping}")
        codes = x.shape if x.size % BOX == 0 else (BOX * ceil_div(x.size, BOX),)
        return Spec(codes, UINT8), Spec((4,), FLOAT32)

    def plan(self, device: Device, x: Spec, y: Spec | None, guard: Spec | None) -> Plan:
        call = _Call(device, x, y, guard, self.keep_nonfinite)
        if self.grouping is None or not x.size:
            return call.tiles()
        outer, groups, inner = self.grouping
        if inner % BOX == 0:
            runs = call.parts(outer * groups, inner // BOX, PART_TILES, 8)
            return call.runs("runs", runs, groups, BOX)
        if inner == 1 and groups % BOX == 0:
            return call.columns(outer, groups)
        if inner >= BOX or outer == 1:
            runs = call.parts(outer * groups, inner, BOX * PART_TILES, 2 * BOX)
            return call.runs("any_runs", runs, groups, 1)
        return call.any_columns(outer, groups, inner)


class _Runs(NamedTuple):
    """Runs of tiles or of elements, in parts, each of which some lanes of a warp add up."""

    runs: int
    length: int
    part: int
    parts: int
    lanes: int

    @classmethod
    def of(cls, runs: int, length: int, most: int, each: int) -> _Runs:
        """Parts of at most so many; a lane has at least `each` of a part that is long enough."""
        parts = ceil_div(length, most)
        part = ceil_div(length, parts)
        lanes = min(max(part // each, 4), part, WARP)
        return cls(runs, length, part, parts, 1 << lanes.bit_length() - 1)

    def blocks(self, device: Device) -> int:
        """Of a launch over all parts."""
        return min(ceil_div(self.runs * self.parts, THREADS // self.lanes), most_blocks(device))


class _Parted(NamedTuple):
    """Moments [outer, groups, parts] of n elements each; the last ones have so many fewer."""

    outer: int
    groups: int
    parts: int
    n: int
    fewer_outer: int = 0
    fewer_parts: int = 0


class _Call:
    """The launches of one call, which share slots, scratch memory and the guard."""

    def __init__(
        self, device: Device, x: Spec, y: Spec | None, guard: Spec | None, keep_nonfinite: bool
    ):
        self.device, self.x, self.y, self.guard = device, x, y, guard
        self.scratch = ScratchMemory()
        self.ticket = self.scratch.zeros(1, np.uint32)
        self.aligned = x.aligned and (y is None or y.aligned)
        self.first = (x, y, x.size, self.aligned, keep_nonfinite)

    def parts(self, runs: int, length: int, most: int, each: int) -> _Runs:
        """Runs in parts of at most so many, or more where that would be very many parts."""
        share = ceil_div(runs * length, PARTS * self.device.multiprocessors)
        return _Runs.of(runs, length, max(most, share), each)

    def tiles(self) -> Plan:
        """Without groups."""
        blocks = self.tile_blocks()
        return self.scratch.plan(self.launch_tiles(self.totals(blocks), blocks, self.y))

    def runs(self, part: str, runs: _Runs, groups: int, each: int) -> Plan:
        """Groups of runs, whose lengths are in so many elements each."""
        moments, blocks = self.moments_of(runs, groups), runs.blocks(self.device)
        merging = self.merging(groups) if moments else 0
        totals = self.totals(blocks + merging)
        end = (totals, 0 if moments else blocks, self.ticket, self.guard)
        encode = self.launch(part, blocks, (*self.first, *runs, moments, *end))
        parted = _parted(runs, groups, each)
        return self.scratch.plan(encode, *self.merge(moments, parted, totals, blocks))

    def columns(self, rows: int, columns: int) -> Plan:
        """Groups of columns, of rows of whole tiles."""
        across = ceil_div(columns // BOX, TILE_LANES)
        span = _span(rows, across, WARPS * self.device.multiprocessors, LEAST_ROWS)
        spans = ceil_div(rows, span)
        moments = self.scratch.take(MOMENTS * spans * columns, np.float64)
        blocks = ceil_div(across * spans, THREADS // WARP)
        totals = self.totals(blocks + self.merging(columns))
        args = (*self.first, rows, columns // BOX, span, moments, totals, self.ticket)
        parted = _Parted(spans, columns, 1, span, spans * span - rows)
        encode = self.launch("columns", blocks, args)
        return self.scratch.plan(encode, *self.merge(moments, parted, totals, blocks))

    def any_columns(self, outer: int, groups: int, inner: int) -> Plan:
        """Groups of other columns, in a second launch."""
        columns = groups * inner
        span = _span(outer, columns, THREADS * most_blocks(self.device), LEAST_ROWS)
        spans, codes, tiles = ceil_div(outer, span), self.codes(), self.tile_blocks()
        moments = self.scratch.take(MOMENTS * spans * columns, np.float64)
        totals = self.totals(tiles + self.merging(groups))
        args = (self.x, codes, self.aligned, outer, columns, span, moments)
        parted = _Parted(spans, groups, inner, span, spans * span - outer)
        return self.scratch.plan(
            self.launch_tiles(totals, 0, codes),
            self.launch("any_columns", ceil_div(spans * columns, THREADS), args),
            *self.merge(moments, parted, totals, tiles),
        )

    def launch_tiles(self, totals: Scratch, n_in_all: int, codes: Spec | Scratch | None) -> Launch:
        x, _, *rest = self.first
        args = (x, codes, *rest, totals, n_in_all, self.ticket, self.guard)
        return self.launch("tiles", self.tile_blocks(), args)

    def merge(
        self, moments: Scratch | None, parted: _Parted, totals: Scratch, first: int
    ) -> tuple[Launch, ...]:
        """The launch that merges moments, where there are any."""
        if moments is None:
            return ()
        blocks = self.merging(parted.groups)
        end = (totals, first, first + blocks, self.ticket, self.guard)
        args = (moments, *parted, self.across(parted.groups), *end)
        return (self.launch("merge", blocks, args),)

    def across(self, groups: int) -> int:
        """Groups that a block merges: few where there are few of them."""
        some = groups // self.device.multiprocessors
        return 1 << min(max(some, 1), MOST_ACROSS).bit_length() - 1

    def merging(self, groups: int) -> int:
        """Blocks of a launch that merges."""
        return ceil_div(groups, self.across(groups))

    def tile_blocks(self) -> int:
        """Of a launch over tiles, which has one without tiles too."""
        least = ceil_div(self.x.nbytes, THREADS * NBYTES)
        return min(max(least, 1), most_blocks(self.device))

    def moments_of(self, runs: _Runs, groups: int) -> Scratch | None:
        """Room for those of all parts, unless each is a group."""
        n = runs.runs * runs.parts
        return None if n == groups else self.scratch.take(MOMENTS * n, np.float64)

    def codes(self) -> Spec | Scratch:
        """Where a second launch finds the codes."""
        if self.y is not None:
            return self.y
        return self.scratch.take(align_up(self.x.size, BOX), UINT8)

    def totals(self, blocks: int) -> Scratch:
        return self.scratch.take(TOTALS * blocks, np.float64)

    def launch(self, part: str, blocks: int, args: tuple[object, ...]) -> Launch:
        binding = {**slots(T=self.x.dtype), "THREADS": str(THREADS), "NBYTES": str(NBYTES)}
        return Launch(f"gist_guard__{part}", Config((blocks,), (THREADS,)), args, binding)


def most_blocks(device: Device) -> int:
    """Of a launch whose blocks take what is left; the last one adds up what they found."""
    return BLOCKS * device.multiprocessors


def _span(rows: int, across: int, wanted: int, least: int) -> int:
    """Rows of a span, so that spans times what is across are about as many as wanted."""
    return min(max(ceil_div(rows, max(wanted // across, 1)), least), rows)


def _parted(runs: _Runs, groups: int, each: int) -> _Parted:
    """Parts of runs, whose lengths are in so many elements each."""
    fewer = runs.parts * runs.part - runs.length
    return _Parted(runs.runs // groups, groups, runs.parts, each * runs.part, 0, each * fewer)


OPS = {"GistGuardedMsfp15Encoder": GistGuardedMsfp15Encoder}
