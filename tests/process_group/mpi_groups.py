# SPDX-License-Identifier: MIT
"""Ranks under MPI that make groups one after the other, beside two that stay, of all and of some.

Those of the same ranks share a communicator, and no message of one is another's.
"""

import sys

import numpy as np
from mpi4py import MPI

import cupy_training_ops as cto
from cupy_training_ops.families.collective.messages import agree_each_time

GROUPS = int(sys.argv[1])

world = MPI.COMM_WORLD
halves = world.Split(world.Get_rank() % 2, 0)
with cto.ProcessGroup.from_mpi(halves) as kept, cto.ProcessGroup.from_mpi() as outer:
    for i in range(GROUPS):
        with cto.ProcessGroup.from_mpi() as group:
            (x,) = cto.nccl_all_reduce([np.full(3, group.rank + i)], group=group)
            for _ in range(3):  # as on a GPU
                if group.rank < 2:
                    agree_each_time(group, "Send", (1, 0), "a message")
            if i % 10 == 0 and outer.rank < 2:
                outer.agree("Send", (1, 0), f"message {i}")
        assert (x == sum(range(group.size)) + i * group.size).all()
    for group in (kept, outer):
        assert cto.nccl_all_reduce([np.ones(1)], group=group)[0] == group.size
sys.stdout.write(f"{GROUPS} groups\n")
