# SPDX-License-Identifier: MIT
"""A rank of three under torchrun: groups of some ranks, whose order is another, and of all.

One has more time than there is.
"""

from __future__ import annotations

import sys

import numpy as np
import torch.distributed as dist

import cupy_training_ops as cto

dist.init_process_group("gloo")
rank = dist.get_rank()
pair, every = dist.new_group([2, 0]), dist.new_group([0, 1, 2])
for given, timeout in ([(pair, 20)] if rank != 1 else []) + [(every, 20), (every, 1e30)]:
    with cto.ProcessGroup.from_torch(given, timeout) as group:
        x = np.full(3, 10.0**group.rank)
        (total,) = cto.nccl_all_reduce([x], group=group)
        assert total[0] == sum(10.0**r for r in range(group.size))
        sys.stdout.write(f"{group}\n")
