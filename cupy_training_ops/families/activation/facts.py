# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of activation share: cuda_src/activation/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot
from ...facts import ELEMENTWISE_NBYTES, ELEMENTWISE_THREADS

THREADS = ELEMENTWISE_THREADS
NBYTES = Slot(ELEMENTWISE_NBYTES)
NORMAL_END = 40.0  # e^(-t^2 / 2) is zero from here on
