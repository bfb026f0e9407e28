# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of gradient share: cuda_src/gradient/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot

THREADS = 128
NBYTES = 32  # of the wider type a thread has in flight
CHUNK_NBYTES = Slot(THREADS * NBYTES)  # of the wider type a block of a list's launch takes
CAPACITY = Slot(108)  # tensors a launch: 36 bytes each, 4,000 in all
