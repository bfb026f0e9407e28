# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of dropout share: cuda_src/dropout/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot
from ...facts import ELEMENTWISE_NBYTES, ELEMENTWISE_THREADS, HELD_NBYTES

THREADS = ELEMENTWISE_THREADS
NBYTES = Slot(ELEMENTWISE_NBYTES)
LINE_NBYTES = Slot(HELD_NBYTES)
LINE_THREADS = 512  # of a block at most: with more there are too few registers
N_HELD = 2  # arrays that a thread holds of a line, beside a mask
