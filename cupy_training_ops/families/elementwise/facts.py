# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of elementwise share: cuda_src/elementwise/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot, Struct, i32, i64, u32
from ...facts import ELEMENTWISE_NBYTES, ELEMENTWISE_THREADS, Divisor

THREADS = ELEMENTWISE_THREADS
NBYTES = Slot(ELEMENTWISE_NBYTES)
MAX_DIMENSIONS = 32

# dY as [outer, kept, inner] where the repeated operand has the kept dimension only; spans of
# outer_each times inner_each elements.
OuterKeptInner = Struct(
    "OuterKeptInner",
    outer=i64,
    kept=i64,
    inner=i64,
    outer_each=i64,
    inner_each=i64,
    inner_spans=i64,
    n_spans=i64,
    lanes=u32,
)

# Dimensions that are kept first, then those that are summed over, the innermost last of either; a
# step of 0 where an array is repeated.
Broadcast = Struct(
    "Broadcast",
    extent=Divisor[MAX_DIMENSIONS],
    dy=i64[MAX_DIMENSIONS],
    a=i64[MAX_DIMENSIONS],
    b=i64[MAX_DIMENSIONS],
    n_kept=i32,
    n=i32,
)
