# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of tensor share: cuda_src/tensor/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Count, Slot, Struct, address, i64, u64
from ...facts import COPY_CHUNKS, COPY_THREADS

THREADS = COPY_THREADS  # threads of a block
CHUNKS = Slot(COPY_CHUNKS)  # vectors that a thread writes
CAPACITY = Slot(16)  # most arrays whose addresses are launch arguments, not in GPU memory

_N = Count("N")  # the template parameter of structs below

# Up to N parts of an array along one axis: part i is the columns, in words, from at[i] to at[i +
# 1] - 1.
PartStarts = Struct("PartStarts", _N, at=i64[_N + 1])

# An input of ConcatTraining: its address, and the column of the result, in words, at which it
# starts.
Part = Struct("Part", array=address, start=i64)

# Up to N results of SplitTraining: result i is the columns of the input, in words, from column[i]
# to column[i + 1] - 1, and is written by blocks tile[i] to tile[i + 1] - 1. multiplier[i]: the
# field `multiplier` of the Divisor of its width.
Split = Struct("Split", _N, column=i64[_N + 1], tile=i64[_N + 1], multiplier=u64[_N + 1])
