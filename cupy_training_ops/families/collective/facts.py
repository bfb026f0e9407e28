# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of collective share: cuda_src/collective/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot

THREADS = 256
CHUNK_NBYTES = 32_768  # of a tensor that a block takes
CAPACITY = Slot(100)  # tensors a launch: two addresses, a size, a start and a chunk by value
DOTS, SCALES = 3, 2  # numbers of a chunk, and of a tensor
