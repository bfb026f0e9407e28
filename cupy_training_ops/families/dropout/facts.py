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

# Philox 4x32-10.
N_WORDS = 4  # of a block
ROUNDS = 10
MULTIPLIER_0, MULTIPLIER_2 = 0xD2511F53, 0xCD9E8D57  # of words of a counter
KEY_STEP_0, KEY_STEP_1 = 0x9E3779B9, 0xBB67AE85  # from round to round
