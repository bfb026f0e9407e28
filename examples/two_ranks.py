# SPDX-License-Identifier: MIT
"""A sum over ranks, of which each is a process with a GPU of its own, or with NumPy arrays.

cupy-training-ops launch --ranks 2 examples/two_ranks.py
torchrun --nproc-per-node 2 examples/two_ranks.py
mpirun -n 2 python examples/two_ranks.py
"""

import numpy as np

import cupy_training_ops as cto

with cto.ProcessGroup() as group:
    x = np.full(3, group.rank + 1.0)  # after cupy.cuda.Device(group.local_rank).use(): a CuPy array
    cto.nccl_all_reduce([x], group=group)  # a list, in place
    print(x)
