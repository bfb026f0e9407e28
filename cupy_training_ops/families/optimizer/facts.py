# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of optimizer share: cuda_src/optimizer/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot, Struct, double, i32, u64

THREADS = 128  # threads of a block
VECS = 2  # vectors of 16 bytes of each array that a thread loads together
CHUNK_NBYTES = Slot(32_768)  # bytes of a gradient that a block takes, for a norm or to clip it
STEP_NBYTES = Slot(8_192)  # bytes of weights that a block updates in a step of SGD
# Tensors of each of two lists in a launch, at most. Each takes 28 bytes of the launch's arguments:
# 2 addresses, a size and its first chunk.
TWO_LISTS = Slot(132)
POINTERS = Slot(2 * TWO_LISTS)  # addresses in the table of such a launch
ONE_LIST = Slot(192)  # tensors of the only list in a launch, at most: 20 bytes of arguments each

# Attributes of the SGD operators; i32 fields are 0 or 1. g grows by weight_decay w; the momentum
# is b = momentum b + (1 - dampening) g, and the step -rate b, or with nesterov -rate (g + momentum
# b). maximize: -g takes g's place. rounds_at_random: new weights in bfloat16 are rounded
# stochastically, by random numbers from `seed`.
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
