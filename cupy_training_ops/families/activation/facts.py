# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of activation share: cuda_src/activation/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot
from ...facts import ELEMENTWISE_NBYTES, ELEMENTWISE_THREADS

THREADS = ELEMENTWISE_THREADS  # threads of a block
NBYTES = Slot(ELEMENTWISE_NBYTES)  # bytes of each array that a thread loads together
NORMAL_END = 40.0  # the t from which on e^(-t^2 / 2) is 0, even as a double
