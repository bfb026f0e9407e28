# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of tensor share: cuda_src/tensor/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Count, Slot, Struct, address, i64, u64
from ...facts import COPY_CHUNKS, COPY_THREADS

THREADS = COPY_THREADS
CHUNKS = Slot(COPY_CHUNKS)
CAPACITY = Slot(16)  # arrays that a launch knows by value

_N = Count("N")

# Where parts start; one start more ends the last.
PartStarts = Struct("PartStarts", _N, at=i64[_N + 1])

# A part of the result of ConcatTraining: an array, and the column it starts at.
Part = Struct("Part", array=address, start=i64)

# Where the parts start, columns of the input and tiles of the launch; multipliers of their widths.
Split = Struct("Split", _N, column=i64[_N + 1], tile=i64[_N + 1], multiplier=u64[_N + 1])
