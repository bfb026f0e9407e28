# SPDX-License-Identifier: MIT
"""One of two ranks that train a sharded model: `torch_ranks.py RANK STORE DEVICE`.

Ours on parts of the parameters beside PyTorch's own on whole ones, with the norm of all ranks; then
a state goes through a distributed checkpoint's functions. Moments of 8 bits are those of each
rank's parts alone.
"""

from __future__ import annotations

import copy
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from cupy_training_ops.optimizers import state as states
from cupy_training_ops.torch import AdamW

SIZES = 7, 9, 1  # rows that two ranks do not share alike: one has none of the last
MAX_NORM = 0.05


def net(device: str) -> torch.nn.Module:
    torch.manual_seed(3)
    layers = [torch.nn.Linear(SIZES[0], SIZES[1]), torch.nn.Tanh(), torch.nn.Linear(*SIZES[1:])]
    return torch.nn.Sequential(*layers).to(device)


def steps(model, optimizer, n: int, device: str, clips: bool) -> None:
    for i in range(n):
        model(x_of(i, device)).square().mean().backward()
        if clips:
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()


def whole(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def x_of(i: int, device: str) -> torch.Tensor:
    return torch.linspace(-1 - i, 1, 5 * SIZES[0]).reshape(5, -1).to(device)


def coded_as_alone(mesh, device: str) -> None:
    """The same bits as of parameters that are a rank's own, through a checkpoint in the middle."""
    states.MIN_CODED = 0  # parameters are small, and empty on a rank
    sharded = net(device)
    fully_shard(sharded, mesh=mesh)
    alone = [torch.nn.Parameter(p.to_local().detach().clone()) for p in sharded.parameters()]
    optimizer, expected = (AdamW(p, lr=1e-2, state="8bit") for p in (sharded.parameters(), alone))
    for i in range(6):
        sharded(x_of(i, device)).square().mean().backward()
        for p, own in zip(sharded.parameters(), alone, strict=True):
            own.grad = p.grad.to_local().clone()
        optimizer.step()
        expected.step()
        optimizer.zero_grad()
        if i == 2:
            state = copy.deepcopy(get_optimizer_state_dict(sharded, optimizer))
            moments = [own["exp_avg"] for own in state["state"].values()]
            assert {m.dtype for m in moments} == {torch.float32}
            assert [m.shape for m in moments] == [p.shape for p in sharded.parameters()]
            optimizer = AdamW(sharded.parameters(), lr=1e-2, state="8bit")
            set_optimizer_state_dict(sharded, optimizer, state)
    for p, own in zip(sharded.parameters(), alone, strict=True):
        assert torch.equal(p.to_local(), own)
        for name in ("exp_avg", "exp_avg_sq"):
            assert optimizer.state[p][name].nbytes < 2 * own.numel() + 1
            assert torch.equal(optimizer.state[p][name], expected.state[own][name])


def main(rank: int, store: str, device: str) -> None:
    kind = "nccl" if device == "cuda" else "gloo"
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(kind, init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh(device, (2,))
    plain, sharded = net(device), net(device)
    fully_shard(sharded, mesh=mesh)
    expected = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    optimizer = AdamW(sharded.parameters(), lr=1e-2, max_norm=MAX_NORM)
    steps(plain, expected, 10, device, clips=True)
    steps(sharded, optimizer, 5, device, clips=False)
    state = copy.deepcopy(get_optimizer_state_dict(sharded, optimizer))
    optimizer = AdamW(sharded.parameters(), lr=1e-2, max_norm=MAX_NORM)
    set_optimizer_state_dict(sharded, optimizer, state)
    for i in range(5, 10):
        if i == 7:
            sharded.double().float()  # the parameters get other local tensors
        sharded(x_of(i, device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert {float(state["step"]) for state in optimizer.state.values()} == {10.0}
    pairs = zip(sharded.parameters(), plain.parameters(), strict=True)
    most = max(float((whole(a) - b).detach().abs().max()) for a, b in pairs)
    assert most < 1e-6, most
    coded_as_alone(mesh, device)
    sys.stdout.write(f"largest difference {most}\n")
    dist.destroy_process_group()
    sys.stdout.flush()
    # A thread of gloo's that frees a tensor while the interpreter ends would abort the process.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
