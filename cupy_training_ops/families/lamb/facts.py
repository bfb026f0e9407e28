# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of lamb share: cuda_src/lamb/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot, Struct, double, i32

THREADS = 128  # threads of a block
EXPECTED_NBYTES = 8_192  # bytes of each array that a block prefetches before it has its factors
VECS = 2  # vectors of 16 bytes of each array that a thread loads together
CHUNK_NBYTES = Slot(32_768)  # bytes of a parameter's chunk, whose directions a block computes
UPDATE_PARTS = 4  # blocks that share a chunk in the launch that updates weights
# Parameters of a launch, at most. Each takes 44 bytes of the launch's arguments: 4 addresses, a
# size and its first chunk.
CAPACITY = Slot(82)
LISTS = 4  # lists of arrays: weights, gradients, first and second moments
POINTERS = Slot(LISTS * CAPACITY)  # addresses of a launch's table: CAPACITY for each list

# Attributes of LambOptimizer. alpha, beta: m = alpha m + (1 - alpha) g, v = beta v + (1 - beta) g
# g. The direction d is m / (sqrt(v) + epsilon) + lambda_ w, with bias correction of m and v if
# correct_bias (0 or 1); the step is rate |w| / |d| d, the ratio |w| / |d| limited to [ratio_min,
# ratio_max]. max_norm: limit of the gradients' norm.
LambRule = Struct(
    "LambRule",
    alpha=double,
    beta=double,
    lambda_=double,
    epsilon=double,
    max_norm=double,
    ratio_min=double,
    ratio_max=double,
    correct_bias=i32,
)
