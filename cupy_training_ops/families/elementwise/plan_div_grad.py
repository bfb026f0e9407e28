# SPDX-License-Identifier: MIT
"""Launches of DivGrad where A and B broadcast; the kernels are in elementwise/div_grad.cuh.

What is summed is divided into chunks; each gives a row of partial sums, and a second launch adds
the rows up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...declare.schema import Spec
from ...dtypes import Dtype
from ...facts import MAX_THREADS, WARP
from ...plan import VEC_NBYTES, Config, Launch, Plan, Scratch, ScratchMemory, by_value, ceil_div
from ...planning.elementwise import type_slots
from ...planning.fast_division import divisor
from ...rules.widening import computed_in
from .broadcasting import Dimension, strides
from .facts import MAX_DIMENSIONS, THREADS, Broadcast, OuterKeptInner

PACKETS = 16  # that a thread sums before it writes a partial sum
BLOCKS = 2048  # about as many keep a large GPU busy
# The same for columns by bytes of an element, as measured on an H200: rows of partial sums are wide
# beside rows of narrow elements.
COLUMN_BLOCKS = {2: 512, 4: 2048, 8: 4096}
SECTOR = 8  # floats that are read at once: fewer columns a block, and so more blocks, cost nothing


@dataclass(frozen=True)
class Arrays:
    """The arrays of one call; a gradient that is not wanted is None."""

    dy: Spec
    a: Spec
    b: Spec
    da: Spec | None
    db: Spec | None

    @property
    def t(self) -> Dtype:
        """The type of all."""
        return self.dy.dtype

    @property
    def present(self) -> tuple[Spec | None, ...]:
        """All of them, in the order of a kernel's parameters."""
        return (self.dy, self.a, self.b, self.da, self.db)

    def whole_and_part(self, part: str) -> tuple[Spec | None, ...]:
        """dY, the operand with every dimension, the other one, the first one's gradient."""
        if part == "B":
            return (self.dy, self.a, self.b, self.da)
        return (self.dy, self.b, self.a, self.db)

    def d_part(self, part: str) -> Spec | None:
        """The gradient of the operand that lacks dimensions."""
        return self.db if part == "B" else self.da


def plan_part(form: tuple[int, int, int], part: str, arrays: Arrays) -> Plan:
    """One operand has every dimension, the part only the middle one of `form`."""
    outer, kept, inner = form
    row = kept if inner == 1 else inner
    aligned = all(spec.aligned for spec in arrays.present if spec is not None)
    packets = aligned and row % (VEC_NBYTES // arrays.t.itemsize) == 0
    width = VEC_NBYTES // arrays.t.itemsize if packets else 1
    if inner == 1:
        return _columns(outer, kept, part, arrays, width)
    return _runs(form, part, arrays, width)


def plan_general(dims: Sequence[Dimension], arrays: Arrays) -> Plan:
    """A launch for each gradient, and one that adds up partial sums where it has chunks.

    Both gradients have their partial sums in the same place, one after the other.
    """
    wanted = ((arrays.da, True), (arrays.db, False))
    plans = [_general(dims, arrays, d, of_a) for d, of_a in wanted if d is not None and d.size]
    steps = tuple(step for plan in plans for step in plan.steps)
    return Plan(steps, max((plan.scratch_nbytes for plan in plans), default=0))


def _columns(rows: int, columns: int, part: str, arrays: Arrays, width: int) -> Plan:
    """The part is one row: blocks as wide as the row, up to their limit."""
    t, d_part = arrays.t, arrays.d_part(part)
    packets = ceil_div(columns, width)
    x = min(THREADS, _power_of_2(packets))
    y = THREADS // x
    across = ceil_div(packets, x)
    chunks = max(1, min(COLUMN_BLOCKS[t.itemsize] // across, ceil_div(rows, y * PACKETS)))
    rows_each = ceil_div(rows, chunks)
    scratch = ScratchMemory()
    partials = _partials(scratch, chunks * y * columns, t) if d_part else None
    sizes = (rows, columns, rows_each)
    args = (*arrays.whole_and_part(part), partials, *sizes, part == "B", width > 1)
    launch = Launch("div_grad__columns", Config((across, chunks), (x, y)), args, type_slots(t))
    finish = _finish(partials, d_part, chunks * y, columns, t)
    return scratch.plan(launch, *finish)


def _runs(form: tuple[int, int, int], part: str, arrays: Arrays, width: int) -> Plan:
    """A part that is one dimension with others inside it: a group of lanes sums along those."""
    (outer, kept, inner), t, d_part = form, arrays.t, arrays.d_part(part)
    packets = ceil_div(inner, width)
    lanes = min(WARP, _power_of_2(packets))
    inner_each = min(inner, lanes * width * PACKETS)
    outer_each = max(1, min(outer, PACKETS // max(1, ceil_div(packets, lanes))))
    inner_chunks = max(1, ceil_div(inner, max(1, inner_each)))
    chunks = inner_chunks * max(1, ceil_div(outer, outer_each))
    scratch = ScratchMemory()
    partials = _partials(scratch, chunks * kept, t) if d_part and chunks > 1 else None
    runs = by_value(
        OuterKeptInner,
        outer=outer,
        kept=kept,
        inner=inner,
        outer_each=outer_each,
        inner_each=inner_each,
        inner_spans=inner_chunks,
        n_spans=chunks,
        lanes=lanes,
    )
    config = Config((ceil_div(kept * chunks, THREADS // lanes),), (THREADS,))
    args = (*arrays.whole_and_part(part), d_part, partials, runs, part == "B", width > 1)
    launch = Launch("div_grad__runs", config, args, type_slots(t))
    finish = _finish(partials, d_part, chunks, kept, t)
    return scratch.plan(launch, *finish)


def _general(dims: Sequence[Dimension], arrays: Arrays, spec: Spec, of_a: bool) -> Plan:
    """Neighbouring threads take neighbouring elements of dY, kept or summed over."""
    t = arrays.t
    has = [d.in_a if of_a else d.in_b for d in dims]
    summed = math.prod(d.extent for d, there in zip(dims, has, strict=True) if not there)
    lanes = 1 if has[-1] else min(WARP, _power_of_2(summed))
    tasks = THREADS * BLOCKS // lanes
    most = max(1, min(tasks // spec.size, ceil_div(summed, lanes * PACKETS)))
    each = max(1, ceil_div(summed, most))
    chunks = max(1, ceil_div(summed, each))
    scratch = ScratchMemory()
    partials = _partials(scratch, chunks * spec.size, t) if chunks > 1 else None
    config = Config((ceil_div(spec.size * chunks, THREADS // lanes),), (THREADS,))
    counts = (spec.size, summed, each, chunks, lanes, of_a)
    args = (arrays.dy, arrays.a, arrays.b, spec, partials, _dimensions(dims, has), *counts)
    launch = Launch("div_grad__general", config, args, type_slots(t))
    return scratch.plan(launch, *_finish(partials, spec, chunks, spec.size, t))


def _dimensions(dims: Sequence[Dimension], kept: Sequence[bool]) -> np.void:
    """The struct Broadcast: dimensions that are kept come first."""
    order = sorted(range(len(dims)), key=lambda i: not kept[i])
    steps = {
        "dy": strides(dims, (True,) * len(dims)),
        "a": strides(dims, [d.in_a for d in dims]),
        "b": strides(dims, [d.in_b for d in dims]),
    }
    rest = MAX_DIMENSIONS - len(dims)
    extents = [*(dims[i].extent for i in order), *[1] * rest]
    tables = {name: [*(step[i] for i in order), *[0] * rest] for name, step in steps.items()}
    divisors = [divisor(max(1, extent)) for extent in extents]
    return by_value(Broadcast, extent=divisors, **tables, n_kept=sum(kept), n=len(dims))


def _partials(scratch: ScratchMemory, n: int, t: Dtype) -> Scratch:
    """Room for n partial sums."""
    return scratch.take(n, computed_in(t))


def _finish(
    partials: Scratch | None, total: Spec | None, rows: int, columns: int, t: Dtype
) -> list[Launch]:
    """The launch that adds up the rows of partial sums, if there are any."""
    if partials is None:
        return []
    least = min(SECTOR, _power_of_2(columns))
    y = min(MAX_THREADS // least, _power_of_2(rows))
    x = max(least, THREADS // y)
    config = Config((ceil_div(columns, x),), (x, y))
    return [Launch("div_grad__finish", config, (partials, total, rows, columns), type_slots(t))]


def _power_of_2(n: int) -> int:
    """The smallest power of 2 that is not below n."""
    return 1 << max(0, n - 1).bit_length()
