# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of reduction share: cuda_src/reduction/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot, Struct, i32, i64

THREADS = 256
UNROLL = 4  # packets of 16 bytes a thread has in flight
CHUNK_NBYTES = Slot(32_768)
CAPACITY = Slot(192)  # tensors a launch: 20 bytes each, 4,000 in all

# Slabs of n_rows rows of n_columns; a block sums `span` rows of a tile of columns.
Slabs = Struct("Slabs", n_slabs=i64, n_rows=i64, n_columns=i64, span=i64, n_spans=i32, n_tiles=i32)
