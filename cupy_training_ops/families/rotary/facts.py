# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of rotary share: cuda_src/rotary/facts.cuh."""

from __future__ import annotations

THREADS = 256
ITEMS = 2  # of a thread: a vector of a row's first half, and the one below it in the second
