# SPDX-License-Identifier: MIT
"""A GPT over ranks by PyTorch's `fully_shard` or DistributedDataParallel, trained by either AdamW.

    torchrun --nproc-per-node 2 scripts/fully_shard_training.py             (two GPUs, NCCL)
    torchrun --nproc-per-node 2 scripts/fully_shard_training.py --tiny      (small, gloo without)
    torchrun --nproc-per-node 2 scripts/fully_shard_training.py --whole     (parameters not divided)

Layers compute in bfloat16, gradients are clipped to a norm of 1. Blocks and the rest are sharded.
Rank 0 prints for each way the peak of memory, the milliseconds of a step, the loss of the last one,
and how far its parameters are from those of PyTorch's way, relative to what training changed:
`AdamW` changes the optimizer alone, `ours` converts the model and takes our loss, too (its dropout
draws other masks; on a CPU it is left out, as PyTorch cannot free the memory of what NumPy has
seen).
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import click
import torch
import torch.distributed as dist
from markdown_table import head_of, row_of
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from training_models import Panel, gpt

import cupy_training_ops as cto

LEARNING_RATE, MAX_NORM = 3e-4, 1.0
WARM_UP = 3


class Way(NamedTuple):
    """How a model is trained."""

    is_converted: bool  # the model, by cto.torch.convert
    is_ours: bool  # the optimizer is cto.torch.AdamW
    state: str | None = None  # its argument


WAYS = {
    "PyTorch": Way(False, False),
    "AdamW": Way(False, True),
    "ours": Way(True, True),
    "ours, 8 bits": Way(True, True, "8bit"),
}


class Training:
    """A sharded model and its optimizer."""

    def __init__(self, task: Panel, way: Way, device: torch.device, is_whole: bool) -> None:
        """task: model and data. way: which optimizer. is_whole: DistributedDataParallel, in which
        each rank has the whole model, in place of fully_shard."""
        torch.manual_seed(0)
        self.task, self.way = task, way
        with device:
            self.model = task.make()
        if way.is_converted:
            cto.torch.convert(self.model)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if is_whole:
            self.network: nn.Module = DistributedDataParallel(self.model)
        else:
            for block in task.blocks(self.model):
                fully_shard(block, mp_policy=policy)
            self.network = fully_shard(self.model, mp_policy=policy)
        self.autocast = torch.autocast(device.type, torch.bfloat16, enabled=is_whole)
        self.optimizer = self._optimizer()
        self.x, self.target = (each.to(device) for each in task.data(dist.get_rank()))
        torch.manual_seed(1 + dist.get_rank())  # of dropout

    def _optimizer(self) -> torch.optim.Optimizer:
        parameters: Iterator[nn.Parameter] = self.model.parameters()
        if self.way.is_ours:
            more: dict[str, Any] = {"state": self.way.state, "max_norm": MAX_NORM}
            return cto.torch.AdamW(parameters, lr=LEARNING_RATE, **more)
        return torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True)

    def step(self) -> Tensor:
        """Make a forward and backward pass and an update; return the loss before it."""
        with self.autocast:
            scores = self.task.scores(self.network, self.x)
        if self.way.is_converted:
            loss = cto.torch.functional.cross_entropy(scores, self.target)
        else:
            loss = functional.cross_entropy(scores, self.target)
        loss.backward()
        if not self.way.is_ours:
            nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def parameters(self) -> Tensor:
        """Return this rank's parts of the parameters, or whole ones, flat on the host,
        where it adds nothing to the peaks that are measured."""
        each = (p.detach() for p in self.model.parameters())
        local = [(p.to_local() if isinstance(p, DTensor) else p).flatten() for p in each]
        return torch.cat([p.cpu() for p in local])


class Measured(NamedTuple):
    """Figures of a way."""

    peak: float  # gigabytes
    ms: float  # median of a step
    least: float  # of all steps
    loss: float  # last one, mean over ranks
    before: Tensor  # this rank's parameters, flat
    after: Tensor


def measured(training: Training, steps: int, device: torch.device) -> Measured:
    """Make the first steps of a training, and measure them."""
    before, losses = training.parameters(), []
    times: list[float] = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(steps):
        start = _now(device)
        losses.append(training.step())
        times.append(_now(device) - start)
    peak = torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else 0.0
    dist.all_reduce(losses[-1])
    loss = losses[-1].item() / dist.get_world_size()
    timed = times[WARM_UP:]
    ms, least = statistics.median(timed) * 1e3, min(timed) * 1e3
    return Measured(peak, ms, least, loss, before, training.parameters())


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def off(actual: Measured, expected: Measured, device: torch.device) -> float:
    """Return the distance of all ranks' parameters over that which training moved them."""
    squares = [actual.after - expected.after, expected.after - expected.before]
    norms = torch.stack([each.double().square().sum() for each in squares]).to(device)
    dist.all_reduce(norms)
    return float((norms[0] / norms[1]).sqrt())


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--tiny", is_flag=True, help="Small sizes.")
@click.option("--steps", default=12, show_default=True, type=click.IntRange(WARM_UP + 1))
@click.option("--way", "chosen", multiple=True, type=click.Choice(list(WAYS)))
@click.option("--whole", is_flag=True, help="DistributedDataParallel: parameters are not divided.")
def main(tiny: bool, steps: int, chosen: tuple[str, ...], whole: bool) -> None:
    """Print a row for each way."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]) if kind == "cuda" else 0)
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    task, first = gpt(tiny, drops=0.1), None
    if dist.get_rank() == 0:
        click.echo(f"{dist.get_world_size()} ranks on {kind}: {task.label}")
        click.echo(head_of(("way", "peak GB", "step ms", "least", "last loss", "off PyTorch")))
    for name, way in WAYS.items():
        if (chosen and name not in chosen) or (kind == "cpu" and way.is_converted):
            continue
        result = measured(Training(task, way, device, whole), steps, device)
        gc.collect()  # the training's, which refers to itself
        first = first or result
        distance = off(result, first, device)
        if dist.get_rank() == 0:
            numbers = (
                f"{result.peak:.2f}",
                f"{result.ms:.1f}",
                f"{result.least:.1f}",
                f"{result.loss:.4f}",
                f"{distance:.4f}",
            )
            click.echo(row_of((name, *numbers)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
