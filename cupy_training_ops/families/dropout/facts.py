# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of dropout share: cuda_src/dropout/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot
from ...facts import ELEMENTWISE_NBYTES, ELEMENTWISE_THREADS, HELD_NBYTES

THREADS = ELEMENTWISE_THREADS  # threads of a block of elementwise kernels
NBYTES = Slot(ELEMENTWISE_NBYTES)  # bytes of each array that a thread of these loads together
LINE_NBYTES = Slot(HELD_NBYTES)  # bytes of a softmax's row in a thread's registers, of all arrays
LINE_THREADS = 512  # most threads of a block that computes rows: more have too few registers
N_HELD = 2  # arrays of which a thread has its part of a row in registers, beside a mask
