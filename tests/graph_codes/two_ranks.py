# SPDX-License-Identifier: MIT
"""One of two ranks that train a compiled model with codes: `two_ranks.py RANK STORE KIND`.

Its gradients, of half of the batch in each rank, beside those of a model without codes and ranks.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[2]))

import cupy_training_ops as cto
from tests.graph_codes.compiled import WIDTH, Layers, backend, errors, normal


def model() -> Layers:
    torch.manual_seed(3)
    return Layers()


def main(rank: int, store: str, kind: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    x = normal(5, 128, WIDTH)
    plain, ours = model(), model()
    plain(x).backward()
    codes = cto.torch.activation_codes(least=0)
    if kind == "ddp":
        run = torch.compile(DistributedDataParallel(ours), backend=backend(codes))
    else:
        mesh = init_device_mesh("cpu", (2,))
        for block in ours.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(ours, mesh=mesh)
        run = torch.compile(ours, backend=backend(codes))
    run(x.chunk(2)[rank]).backward()
    assert codes.report()["coded"]["int8"]["tensors"] >= 4
    gradients = {
        name.removeprefix("module."): p.grad.full_tensor() if kind != "ddp" else p.grad
        for name, p in ours.named_parameters()
    }
    expected = {name: p.grad for name, p in plain.named_parameters()}
    sys.stdout.write(f"largest difference {errors(expected, gradients)[-1]}\n")
    dist.destroy_process_group()
    sys.stdout.flush()
    # A thread of gloo's that frees a tensor while the interpreter ends would abort the process.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
