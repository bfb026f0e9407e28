# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of lamb share: cuda_src/lamb/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot, Struct, double, i32

THREADS = 128
EXPECTED_NBYTES = 8_192  # of each array that a block asks for before it has its factors
VECS = 2  # packets of 16 bytes of each array a thread has in flight
CHUNK_NBYTES = Slot(32_768)  # of weights that a block takes
UPDATE_PARTS = 4  # blocks that share a chunk where weights are updated
CAPACITY = Slot(82)  # tensors a launch: 44 bytes each, beside numbers
LISTS = 4  # that a launch has addresses of
POINTERS = Slot(LISTS * CAPACITY)

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
