# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of gradient share: cuda_src/gradient/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot

THREADS = 128  # threads of a block
NBYTES = 32  # bytes that a thread loads together, of the array with the wider type
CHUNK_NBYTES = Slot(THREADS * NBYTES)  # bytes of a tensor that a block takes, of the wider type
# Tensors of a launch, at most. Each takes 36 bytes of the launch's arguments, which have 4 KB: 3
# addresses, a size and its first chunk.
CAPACITY = Slot(108)
