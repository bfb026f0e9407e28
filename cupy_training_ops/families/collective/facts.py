# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of collective share: cuda_src/collective/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot

THREADS = 256  # threads of a block
CHUNK_NBYTES = 32_768  # bytes of a tensor that a block takes
# Tensors of a launch, at most. Its arguments have two addresses, a size, a start and the first
# chunk of each.
CAPACITY = Slot(100)
DOTS = 3  # doubles of a chunk's sums of products: own * own, other * other, own * other
SCALES = 2  # doubles of a tensor's factors (a, b): the result is a own + b other
