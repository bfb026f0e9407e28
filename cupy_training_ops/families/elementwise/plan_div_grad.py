# SPDX-License-Identifier: MIT
"""Launches of DivGrad; the kernels of A and B that broadcast are in elementwise/div_grad.cuh.

Neighbouring dimensions that the same operands have are planned as one. The elements that a sum is
over are divided into chunks; each gives a row of partial sums, as long as the gradient, and a
second launch adds the rows up. A packet is 16 bytes of elements, or one element where arrays or
rows are not aligned; the part is the operand, "A" or "B", that lacks dimensions of the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, zip_longest
from typing import NamedTuple

import numpy as np

from ...declare.schema import Shape, Spec
from ...dtypes import Dtype
from ...facts import MAX_THREADS, WARP
from ...plan import VEC_NBYTES, Config, Launch, Plan, Scratch, ScratchMemory, by_value, ceil_div
from ...planning.elementwise import streaming_launch, type_slots
from ...planning.fast_division import divisor
from ...rules.widening import computed_in
from .facts import MAX_DIMENSIONS, THREADS, Broadcast, OuterMiddleInner

PACKETS = 16  # that a thread sums before it writes a partial sum
BLOCKS = 2048  # about as many keep a large GPU busy
# The same for columns by bytes of an element, as measured on an H200: rows of partial sums are wide
# beside rows of narrow elements.
COLUMN_BLOCKS = {2: 512, 4: 2048, 8: 4096}
SECTOR = 8  # floats that are read at once: fewer columns a block, and so more blocks, cost nothing


# ---- broadcast shapes ----------------------------------------------------------------------------


class Dimension(NamedTuple):
    """A dimension of the result: its extent, and if A and B have it; else they are repeated."""

    extent: int
    in_a: bool
    in_b: bool


def broadcast(a: Shape, b: Shape) -> Shape | None:
    """Return the shape that a and b broadcast to, of any rank; None if they do not broadcast."""
    pairs = list(zip_longest(reversed(a), reversed(b), fillvalue=1))
    if any(p != q and 1 not in (p, q) for p, q in pairs):
        return None
    return tuple(p if q == 1 else q for p, q in reversed(pairs))


def dimensions(a: Shape, b: Shape) -> list[Dimension]:
    """Return the dimensions of the result, outermost first: no extent 1, neighbours alike merged.

    a, b: shapes of A and B. (4, 5, 1, 3) and (6, 3): [(20, in A alone), (6, in B alone), (3, in
    both)].
    """
    extents = reversed(list(zip_longest(reversed(a), reversed(b), fillvalue=1)))
    rows = [(p if q == 1 else q, p != 1, q != 1) for p, q in extents if (p, q) != (1, 1)]
    return [
        Dimension(math.prod(extent for extent, *_ in group), *key)
        for key, group in groupby(rows, key=lambda row: row[1:])
    ]


def outer_middle_inner(dims: Sequence[Dimension], part: str) -> tuple[int, int, int] | None:
    """Return the result's extents as (outer, middle, inner), of which `part` has the middle alone.

    dims: of the result. part: the operand "A" or "B". A (30, 264) and B (30, 1): part "B" gives (1,
    30, 264). None if the other operand does not have all dimensions, or the part's do not lie side
    by side.
    """
    if not all(d.in_a if part == "B" else d.in_b for d in dims):
        return None
    places = [i for i, d in enumerate(dims) if (d.in_b if part == "B" else d.in_a)]
    if len(places) > 1:
        return None
    first, end = (places[0], places[0] + 1) if places else (0, 0)
    groups = dims[:first], dims[first:end], dims[end:]
    outer, middle, inner = (math.prod(d.extent for d in group) for group in groups)
    return outer, middle, inner


def strides(dims: Sequence[Dimension], has: Sequence[bool]) -> list[int]:
    """Return an operand's stride in elements for each of `dims`, 0 where `has` is False."""
    strides_from_last, step = [], 1
    for dimension, there in zip(reversed(dims), reversed(has), strict=True):
        strides_from_last.append(step if there else 0)
        step *= dimension.extent if there else 1
    return strides_from_last[::-1]


# ---- launches ------------------------------------------------------------------------------------


class Arrays(NamedTuple):
    """The call's arrays in the order of the kernels; a gradient that is not wanted is None."""

    dy: Spec
    a: Spec
    b: Spec
    da: Spec | None
    db: Spec | None

    @property
    def t(self) -> Dtype:
        return self.dy.dtype

    def whole_and_part(self, part: str) -> tuple[Spec | None, ...]:
        """Return dY, the operand with every dimension, the other one, and the first one's gradient.

        part: "A" or "B", the other one, which lacks dimensions.
        """
        if part == "B":
            return (self.dy, self.a, self.b, self.da)
        return (self.dy, self.b, self.a, self.db)

    def d_part(self, part: str) -> Spec | None:
        """Return the gradient of operand `part`, "A" or "B", None if it is not wanted."""
        return self.db if part == "B" else self.da


def plan_gradients(arrays: Arrays) -> Plan:
    """Plan the wanted gradients, with the simplest kernel that fits how A and B broadcast."""
    a, b = arrays.a, arrays.b
    if a.size == b.size == arrays.dy.size:
        return Plan((streaming_launch("div_grad", arrays),))
    dims = dimensions(a.shape, b.shape)
    for part in ("B", "A"):
        form = outer_middle_inner(dims, part)
        if form is not None:
            return _part(form, part, arrays)
    return _general(dims, arrays)


def _part(form: tuple[int, int, int], part: str, arrays: Arrays) -> Plan:
    """Plan both gradients where one operand lacks dimensions, the other one none.

    part: the first one, "A" or "B". form: (outer, middle, inner), of which it has the middle.
    """
    outer, middle, inner = form
    row = middle if inner == 1 else inner
    aligned = all(spec.aligned for spec in arrays if spec is not None)
    packets = aligned and row % (VEC_NBYTES // arrays.t.itemsize) == 0
    width = VEC_NBYTES // arrays.t.itemsize if packets else 1
    if inner == 1:
        return _columns(outer, middle, part, arrays, width)
    return _runs(form, part, arrays, width)


def _general(dims: Sequence[Dimension], arrays: Arrays) -> Plan:
    """Plan a launch for each gradient, and one that adds up its partial sums, if there are any.

    dims: of the result, outermost first. Both gradients have their partial sums in the same place,
    one after the other.
    """
    wanted = ((arrays.da, True), (arrays.db, False))
    plans = [_gradient(dims, arrays, d, of_a) for d, of_a in wanted if d is not None and d.size]
    steps = tuple(step for plan in plans for step in plan.steps)
    return Plan(steps, max((plan.scratch_nbytes for plan in plans), default=0))


def _columns(rows: int, columns: int, part: str, arrays: Arrays, width: int) -> Plan:
    """Plan gradients where dY is (rows, columns) and the part one row of it.

    A block has x threads along a row, a packet each, and y along the rows; it adds up `rows_each`
    rows to y rows of partial sums. width: elements of a packet.
    """
    t, d_part = arrays.t, arrays.d_part(part)
    packets = ceil_div(columns, width)
    x = min(THREADS, _power_of_2(packets))
    y = THREADS // x
    across = ceil_div(packets, x)
    chunks = max(1, min(COLUMN_BLOCKS[t.itemsize] // across, ceil_div(rows, y * PACKETS)))
    rows_each = ceil_div(rows, chunks)
    scratch = ScratchMemory()
    partials = scratch.take(chunks * y * columns, computed_in(t)) if d_part else None
    sizes = (rows, columns, rows_each)
    args = (*arrays.whole_and_part(part), partials, *sizes, part == "B", width > 1)
    launch = Launch("div_grad__columns", Config((across, chunks), (x, y)), args, type_slots(t))
    finish = _finish(partials, d_part, chunks * y, columns, t)
    return scratch.plan(launch, *finish)


def _runs(form: tuple[int, int, int], part: str, arrays: Arrays, width: int) -> Plan:
    """Plan gradients for dY's extents `form` (outer, middle, inner); `part` has the middle alone.

    For each of that operand's elements, `chunks` groups of `lanes` threads add up outer_each times
    inner_each elements, one partial sum each; with one chunk the group writes the gradient. width:
    elements of a packet.
    """
    (outer, middle, inner), t, d_part = form, arrays.t, arrays.d_part(part)
    packets = ceil_div(inner, width)
    lanes = min(WARP, _power_of_2(packets))
    inner_each = min(inner, lanes * width * PACKETS)
    outer_each = max(1, min(outer, PACKETS // max(1, ceil_div(packets, lanes))))
    inner_chunks = max(1, ceil_div(inner, max(1, inner_each)))
    chunks = inner_chunks * max(1, ceil_div(outer, outer_each))
    scratch = ScratchMemory()
    partials = scratch.take(chunks * middle, computed_in(t)) if d_part and chunks > 1 else None
    runs = by_value(
        OuterMiddleInner,
        outer=outer,
        middle=middle,
        inner=inner,
        outer_each=outer_each,
        inner_each=inner_each,
        inner_spans=inner_chunks,
        n_spans=chunks,
        lanes=lanes,
    )
    config = Config((ceil_div(middle * chunks, THREADS // lanes),), (THREADS,))
    args = (*arrays.whole_and_part(part), d_part, partials, runs, part == "B", width > 1)
    launch = Launch("div_grad__runs", config, args, type_slots(t))
    finish = _finish(partials, d_part, chunks, middle, t)
    return scratch.plan(launch, *finish)


def _gradient(dims: Sequence[Dimension], arrays: Arrays, spec: Spec, of_a: bool) -> Plan:
    """Plan the gradient `spec` of A (of_a) or B, where both may be repeated along any dimensions.

    A group of `lanes` threads adds up `each` elements of one sum; it is one thread if the gradient
    has dY's last dimension, so that neighbouring threads always read neighbouring elements.
    """
    t = arrays.t
    has = [d.in_a if of_a else d.in_b for d in dims]
    summed = math.prod(d.extent for d, there in zip(dims, has, strict=True) if not there)
    lanes = 1 if has[-1] else min(WARP, _power_of_2(summed))
    tasks = THREADS * BLOCKS // lanes  # groups, each for a chunk of a sum
    most = max(1, min(tasks // spec.size, ceil_div(summed, lanes * PACKETS)))  # chunks
    each = max(1, ceil_div(summed, most))
    chunks = max(1, ceil_div(summed, each))
    scratch = ScratchMemory()
    partials = scratch.take(chunks * spec.size, computed_in(t)) if chunks > 1 else None
    config = Config((ceil_div(spec.size * chunks, THREADS // lanes),), (THREADS,))
    counts = (spec.size, summed, each, chunks, lanes, of_a)
    args = (arrays.dy, arrays.a, arrays.b, spec, partials, _dimensions(dims, has), *counts)
    launch = Launch("div_grad__general", config, args, type_slots(t))
    return scratch.plan(launch, *_finish(partials, spec, chunks, spec.size, t))


def _dimensions(dims: Sequence[Dimension], has: Sequence[bool]) -> np.void:
    """Return the struct Broadcast: dimensions that the gradient has first, then those summed.

    has: for each of `dims`, True if the gradient has it.
    """
    order = sorted(range(len(dims)), key=lambda i: not has[i])
    steps = {
        "dy": strides(dims, (True,) * len(dims)),
        "a": strides(dims, [d.in_a for d in dims]),
        "b": strides(dims, [d.in_b for d in dims]),
    }
    rest = MAX_DIMENSIONS - len(dims)
    extents = [*(dims[i].extent for i in order), *[1] * rest]
    tables = {name: [*(step[i] for i in order), *[0] * rest] for name, step in steps.items()}
    divisors = [divisor(max(1, extent)) for extent in extents]
    return by_value(Broadcast, extent=divisors, **tables, n_gradient=sum(has), n=len(dims))


def _finish(
    partials: Scratch | None, total: Spec | None, rows: int, columns: int, t: Dtype
) -> list[Launch]:
    """Plan the sum of `rows` rows of `columns` partial sums to `total`; [] without partials.

    t: the dtype of the gradient `total`.
    """
    if partials is None:
        return []
    least = min(SECTOR, _power_of_2(columns))
    y = min(MAX_THREADS // least, _power_of_2(rows))
    x = max(least, THREADS // y)
    config = Config((ceil_div(columns, x),), (x, y))
    return [Launch("div_grad__finish", config, (partials, total, rows, columns), type_slots(t))]


def _power_of_2(n: int) -> int:
    """Return the smallest power of 2 that is at least n."""
    return 1 << max(0, n - 1).bit_length()
