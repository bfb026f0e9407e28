# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of optimizer share: cuda_src/optimizer/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot, Struct, double, i32, u64

THREADS = 128
VECS = 2  # packets of 16 bytes of each array a thread has in flight
CHUNK_NBYTES = Slot(32_768)  # of an array that a block takes of a norm, and clips
STEP_NBYTES = Slot(8_192)  # of an array of weights that a block makes a step of
TWO_LISTS = Slot(132)  # tensors a launch: 28 bytes each, beside numbers
POINTERS = Slot(2 * TWO_LISTS)
ONE_LIST = Slot(192)  # 20 bytes each

SGDRule = Struct(
    "SGDRule",
    momentum=double,
    dampening=double,
    weight_decay=double,
    seed=u64,
    nesterov=i32,
    maximize=i32,
    rounds_at_random=i32,
)
