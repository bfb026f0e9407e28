# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of softmax share: cuda_src/softmax/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot
from ...facts import HELD_NBYTES

# Bytes of a row or column, of all arrays that are read, in a thread's registers at a time.
NBYTES = Slot(HELD_NBYTES)
