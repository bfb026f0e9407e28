# SPDX-License-Identifier: MIT
"""Ranks under MPI that make more groups, one after the other, than MPI has communicators."""

import sys

import numpy as np
from mpi4py import MPI

import cupy_training_ops as cto

GROUPS = int(sys.argv[1])

world = MPI.COMM_WORLD
halves = world.Split(world.Get_rank() % 2, 0)
with cto.ProcessGroup.from_mpi(halves) as kept:
    for i in range(GROUPS):
        with cto.ProcessGroup.from_mpi() as group:
            (x,) = cto.nccl_all_reduce([np.full(3, group.rank + i)], group=group)
            for _ in range(3):  # as on a GPU: the last labels are not read before the group closes
                if group.rank < 2:
                    group.agree("Send", (1, 0), "a message", each_time=True)
        assert (x == sum(range(group.size)) + i * group.size).all()
    assert cto.nccl_all_reduce([np.ones(1)], group=kept)[0] == kept.size
sys.stdout.write(f"{GROUPS} groups\n")
