# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of padding share: cuda_src/padding/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot, Struct, i64
from ...facts import COPY_CHUNKS, COPY_THREADS, Divisor

THREADS = COPY_THREADS
CHUNKS = Slot(COPY_CHUNKS)
MAX_DIMENSIONS = 50  # more cannot have two positions each

# Positions start, start + step, ... of a dimension, `count` of them, hold dY's 0, 1, ...;
# `distance` is the step's size.
Dimension = Struct(
    "Dimension",
    extent=Divisor.one,
    distance=Divisor.one,
    start=i64,
    backwards=i64,
    count=i64,
)

Dimensions = Struct("Dimensions", at=Dimension[MAX_DIMENSIONS])
