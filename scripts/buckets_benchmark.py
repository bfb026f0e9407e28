# SPDX-License-Identifier: MIT
"""Communication of gradients that a backward pass hides; for two GPUs or more.

    cupy-training-ops launch --ranks 2 scripts/buckets_benchmark.py --out OUT.json
    cupy-training-ops launch --ranks 2 scripts/buckets_benchmark.py --quick --provider cpu

The backward pass of a GPT of torch_models.py, float32 gradients, without and with buckets,
and the buckets alone; on GPUs the same of PyTorch's DistributedDataParallel. Hidden is what of the
communication's own time the pass does not become longer by. Cases take turns; medians count, of
the slowest rank.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import click
import numpy as np
from sharded_benchmark import Call, Clock, Row, measuring, medians, report
from train_data_parallel import library

import cupy_training_ops as cto

MEGABYTES = (10.0, 25.0, 100.0)
PEERS = (25.0, 100.0)


class Training:
    """Forward and backward passes of the transformer on this rank."""

    def __init__(self, xp: Any, quick: bool) -> None:
        import torch
        from torch_models import GPT, text

        self._torch = torch
        self.device = torch.device("cpu" if xp is np else f"cuda:{xp.cuda.runtime.getDevice()}")
        if xp is not np:
            torch.cuda.set_device(self.device)
        sizes = (2, 64, 4, 128, 128) if quick else (12, 1024, 16, 4096, 1024)
        rows = text(4 if quick else 16, sizes[-1], sizes[-2])
        self._x, self._target = (each.to(self.device) for each in rows(1))
        with self.device:
            self.network = GPT(*sizes)
        self.parameters = list(self.network.parameters())
        self._loss: Any = None

    def forward(self, network: Any = None) -> None:
        torch = self._torch
        self.network.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16):
            found = (network or self.network)(self._x)
        self._loss = torch.nn.functional.cross_entropy(found.float(), self._target)

    def backward(self) -> None:
        self._loss.backward()
        self._loss = None


def rows(xp: Any, group: cto.ProcessGroup, quick: bool, rounds: int) -> Iterator[Row]:
    """Rows of buckets of several sizes, and of the peer."""
    training, clock = Training(xp, quick), Clock(xp, group)
    for megabytes in MEGABYTES:
        buckets = cto.torch.GradientBuckets(training.parameters, group, megabytes=megabytes)
        yield from hidden(f"buckets of {megabytes:g} MB", clock, rounds, {
            "backward pass": (training.forward, lambda b=buckets: without(b, training.backward)),
            "with": (training.forward, lambda b=buckets: (training.backward(), b.wait())),
            "alone": (lambda: None, lambda b=buckets: sent(b, training.parameters)),
        })  # fmt: skip
        buckets.close()
    if xp is not np and group.size > 1:
        yield from peer_rows(training, clock, rounds)


def hidden(
    name: str, clock: Clock, rounds: int, calls: dict[str, tuple[Call, Call]]
) -> Iterator[Row]:
    """The times of three calls, and what is hidden."""
    found = medians(clock, calls, rounds)
    yield from ({"case": f"{name}: {case}", "ms": ms} for case, ms in found.items())
    plain, both, alone = found.values()
    yield {"case": f"{name}: hidden", "ratio": 1 - (both - plain) / alone}


def without(buckets: Any, backward: Callable[[], None]) -> None:
    """A backward pass whose gradients stay here."""
    with buckets.paused():
        backward()


def sent(buckets: Any, parameters: list[Any]) -> None:
    """All gradients at once, in the order of the buckets."""
    for place in itertools.chain.from_iterable(buckets._buckets._buckets):
        buckets._buckets.ready(place, parameters[place].grad)
    buckets.wait()


def peer_rows(training: Training, clock: Clock, rounds: int) -> Iterator[Row]:
    """PyTorch's way, over a communicator of its own; alone are arrays as large as its buckets."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl", device_id=training.device)
    total = sum(p.numel() for p in training.parameters)
    for megabytes in PEERS:
        wrapped = torch.nn.parallel.DistributedDataParallel(
            training.network, bucket_cap_mb=megabytes, gradient_as_bucket_view=True
        )
        n = round(4 * total / (megabytes * 2**20)) or 1
        arrays = [torch.zeros(total // n, device=training.device) for _ in range(n)]

        def forward_alone(ddp: Any = wrapped) -> None:
            with ddp.no_sync():
                training.forward(ddp)

        def alone(arrays: list[Any] = arrays) -> None:
            for work in [dist.all_reduce(array, async_op=True) for array in arrays]:
                work.wait()

        yield from hidden(f"DistributedDataParallel, {megabytes:g} MB", clock, rounds, {
            "backward pass": (forward_alone, lambda d=wrapped: without_sync(d, training.backward)),
            "with": (lambda d=wrapped: training.forward(d), training.backward),
            "alone": (lambda: None, alone),
        })  # fmt: skip
        del wrapped, forward_alone
        gc.collect()  # whose hooks would go on
    dist.destroy_process_group()


def without_sync(wrapped: Any, backward: Callable[[], None]) -> None:
    with wrapped.no_sync():
        backward()


@click.command(help=(__doc__ or "").partition("\n")[0])
@measuring
def main(out: Path | None, provider: str, quick: bool, rounds: int) -> None:
    """Measure, and print a line for each figure."""
    with cto.ProcessGroup() as group:
        xp = library(provider, group)
        if group.rank == 0:
            print(f"NCCL_MAX_CTAS {os.environ.get('NCCL_MAX_CTAS', 'unset')}", flush=True)
        report(out, group, rows(xp, group, quick, rounds))


if __name__ == "__main__":
    main()
