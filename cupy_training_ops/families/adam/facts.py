# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of adam share: cuda_src/adam/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot, Struct, double, i32, u64

THREADS = 128
EXPECTED_NBYTES = 8_192  # of each array that a block asks for before it has its factors
VECS = 2  # packets of 16 bytes of each array a thread has in flight
CHUNK_NBYTES = Slot(8_192)  # of the widest array that a block takes: the last blocks end together
ONE_NBYTES = 4_096  # the same where there is one parameter; lists take 6 % longer by so few
CAPACITY = Slot(84)  # tensors a launch: 44 bytes each, beside numbers
LISTS = 4  # that a launch has addresses of
POINTERS = Slot(LISTS * CAPACITY)

CODED_BLOCK = 128  # moments in codes that share a scale: those of a warp
CODED_CHUNK = Slot(8_192)  # elements that a block of threads takes, whole blocks of codes

# Codes of 8 bits: powers of two, each divided by so many bits.
FIRST_BITS = 3  # of the fraction, in codes of first moments, beside their sign
SECOND_BITS = 3  # in codes of second moments, which have none
OCTAVES = 16  # powers of two, in codes of first moments
ROOM = 5  # of them above the root of the second moment

# Codes of 4 bits.
MOST_BITS = 2  # of the fraction, in codes of second moments, where a block has room for so many
LEVELS = 7  # of first moments, on either side of 0
LEAST_EXPONENT = -60  # of the largest ratio in a block; below that first moments are 0

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
