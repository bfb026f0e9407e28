# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of reduction share: cuda_src/reduction/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot, Struct, i32, i64

THREADS = 256  # threads of a block
UNROLL = 4  # vectors of 16 bytes that a thread loads together
CHUNK_NBYTES = Slot(32_768)  # bytes of a tensor's chunk, which a block reads
# Tensors of a launch, at most. Each takes 20 bytes of the launch's arguments, which have 4 KB: an
# address, a size and its first chunk.
CAPACITY = Slot(192)

# An array of n_slabs x n_rows x n_columns elements, summed over rows. The rows of a slab are
# divided into n_spans spans of `span` rows, its columns into n_tiles tiles: a block sums one span
# of one tile.
Slabs = Struct("Slabs", n_slabs=i64, n_rows=i64, n_columns=i64, span=i64, n_spans=i32, n_tiles=i32)
