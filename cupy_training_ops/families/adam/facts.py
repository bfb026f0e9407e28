# SPDX-License-Identifier: MIT
"""Facts that plans and kernels of adam share: cuda_src/adam/facts.cuh."""

from __future__ import annotations

from ...declare.facts import Slot, Struct, double, i32

THREADS = 128
EXPECTED_NBYTES = 8_192  # of each array that a block asks for before it has its factors
VECS = 2  # packets of 16 bytes of each array a thread has in flight
CHUNK_NBYTES = Slot(8_192)  # of the widest array that a block takes: the last blocks end together
ONE_NBYTES = 4_096  # the same where there is one parameter; lists take 6 % longer by so few
CAPACITY = Slot(84)  # tensors a launch: 44 bytes each, beside numbers
CODED_BLOCK = 128  # moments in codes that share an exponent: those of a warp
CODED_CHUNK = Slot(8_192)  # elements that a block of threads takes, whole blocks of codes
FIRST_BITS = 4  # of the fraction, in codes of first moments beside their sign
SECOND_BITS = 4  # in codes of second moments, which have none
LISTS = 4  # that a launch has addresses of
POINTERS = Slot(LISTS * CAPACITY)

AdamRule = Struct(
    "AdamRule",
    alpha=double,
    beta=double,
    lambda_=double,
    epsilon=double,
    correct_bias=i32,
    decays_updated=i32,
)
