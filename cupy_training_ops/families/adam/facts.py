# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of adam share: cuda_src/adam/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot, Struct, double, i32, u64

THREADS = 128  # threads of a block
EXPECTED_NBYTES = 8_192  # bytes of each array that a block prefetches before it has its factors
VECS = 2  # vectors of 16 bytes of each array that a thread loads together
# Bytes of the widest array that a block updates, of a list of parameters. It is small, so that the
# last blocks end together.
CHUNK_NBYTES = Slot(8_192)
# Bytes of the widest array that a block updates, of a single parameter. Lists would take 6 %
# longer with so few.
ONE_NBYTES = 4_096
# Parameters of a launch, at most. Each takes 44 bytes of the launch's arguments: 4 addresses, a
# size and its first chunk.
CAPACITY = Slot(84)
LISTS = 4  # lists of arrays: weights, gradients, first and second moments
POINTERS = Slot(LISTS * CAPACITY)  # addresses of a launch's table: CAPACITY for each list

CODED_BLOCK = 128  # moments in codes of 8 or 4 bits that share a scale: a warp's, 4 of each lane
CODED_CHUNK = Slot(8_192)  # elements with such moments that a block updates

FIRST_BITS = 3  # bits of the fraction in an 8-bit code of a first moment, which also has a sign
SECOND_BITS = 3  # bits of the fraction in an 8-bit code of a second moment
OCTAVES = 16  # powers of two over which 8-bit codes of first moments range
ROOM = 5  # powers of two from the root of the second moment up to the largest such code's

MOST_BITS = 2  # bits, at most, of the fraction in a 4-bit code of a second moment
LEVELS = 7  # levels above 0, and below 0, of a 4-bit code of a first moment
# Exponent of the smallest ratio |first moment| / root of the second that a 4-bit code has: if the
# largest ratio of a CODED_BLOCK is below 2^LEAST_EXPONENT, its first moments become 0.
LEAST_EXPONENT = -60

# Attributes of the Adam operators; i32 fields are 0 or 1. m = alpha m + (1 - alpha) g, v = beta v
# + (1 - beta) g g, and u = rate m / (sqrt(v) + epsilon), with bias correction of m and v if
# correct_bias. lambda_ is the weight decay: lambda_ w is added to g if decays_gradient; else w
# loses rate lambda_ (w - u) if decays_updated, or rate lambda_ w. maximize: -g takes g's place.
# rounds_at_random: new weights in bfloat16 are rounded stochastically, by random numbers from
# `seed`.
AdamRule = Struct(
    "AdamRule",
    alpha=double,
    beta=double,
    lambda_=double,
    epsilon=double,
    seed=u64,
    correct_bias=i32,
    decays_updated=i32,
    decays_gradient=i32,
    maximize=i32,
    rounds_at_random=i32,
)
