# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of elementwise share: cuda_src/elementwise/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot, Struct, i32, i64, u32
from ...facts import ELEMENTWISE_NBYTES, ELEMENTWISE_THREADS, Divisor

THREADS = ELEMENTWISE_THREADS  # threads of a block
NBYTES = Slot(ELEMENTWISE_NBYTES)  # bytes of each array that a thread loads together
MAX_DIMENSIONS = 32  # most dimensions of dY, after those that are broadcast alike are merged

# dY as [outer, middle, inner] where the repeated operand is [middle]. The sum for an element of
# its gradient is over outer times inner elements: in n_spans spans of outer_each times inner_each,
# which are numbered along `inner` first, inner_spans of them. `lanes` threads add up one span.
OuterMiddleInner = Struct(
    "OuterMiddleInner",
    outer=i64,
    middle=i64,
    inner=i64,
    outer_each=i64,
    inner_each=i64,
    inner_spans=i64,
    n_spans=i64,
    lanes=u32,
)

# n dimensions: the n_gradient ones that the gradient has, then those that are summed, both from
# the outermost to the innermost. extent: divisors by their extents. dy, a, b: elements from one
# index to the next in each array, 0 where the array is repeated.
Broadcast = Struct(
    "Broadcast",
    extent=Divisor[MAX_DIMENSIONS],
    dy=i64[MAX_DIMENSIONS],
    a=i64[MAX_DIMENSIONS],
    b=i64[MAX_DIMENSIONS],
    n_gradient=i32,
    n=i32,
)
