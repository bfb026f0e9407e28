# SPDX-License-Identifier: MIT
"""Collectives, divided steps of AdamW and buckets of gradients over ranks; for two GPUs or more.

    cupy-training-ops launch --ranks 2 scripts/collective_benchmark.py calls --out OUT.json
    cupy-training-ops launch --ranks 2 scripts/collective_benchmark.py steps --quick --provider cpu

calls: collectives beside torch.distributed with the same NCCL and calls of CuPy's binding written
by hand, by events around a batch of calls; of host times also that of the slowest rank. Bus
bandwidths are those of NCCL's own tests: of n ranks 2 (n - 1) / n bytes for an all-reduce,
(n - 1) / n for the others.

steps: of 1.3 billion float32 parameters; a reduce-scatter, update and all-gather beside an
all-reduce and a whole update, the updates alone, and bytes of moments.

buckets: the backward pass of a GPT, float32 gradients, without and with buckets, and the buckets
alone; on GPUs the same of PyTorch's DistributedDataParallel. Hidden is what of the communication's
own time the pass does not become longer by.

Cases take turns; medians count, those of steps and buckets of the slowest rank. --quick has small
sizes; on the CPU it shows that steps and buckets run.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import click
import cupy
import numpy as np
from cases.parameters import SHAPES
from train_data_parallel import library

import cupy_training_ops as cto
from cupy_training_ops.process_group import nccl

BATCH = 10  # calls between two events
LARGE = 2**26  # elements of float32: 256 MiB
MANY, SMALL = 500, 65_536 // 4
FEW_SHAPES = ((300, 200), (513,), (7,))
MEGABYTES = (10.0, 25.0, 100.0)
PEERS = (25.0, 100.0)

Call = Callable[[], object]
Calls = dict[str, Call]  # by who makes them
Case = tuple[Calls, float, float]  # the bytes that count, and the factor of the bus
Row = dict[str, Any]


# ---- calls --------------------------------------------------------------------------------------


def cases(group: cto.ProcessGroup) -> dict[str, Case]:
    """Return the cases by name: calls by who makes them, bytes, factor of the bus bandwidth."""
    import torch
    from torch import distributed as dist

    once, size = (group.size - 1) / group.size, group.size
    small, x = (torch.ones(n, device="cuda") for n in (256, LARGE))
    many = [torch.ones(SMALL, device="cuda") for _ in range(MANY)]
    shard = torch.ones(LARGE // size, device="cuda")
    small_sum, many_sums = sums(group, [small]), sums(group, many)
    same = [cupy.from_dlpack(small)]
    small_sum["ours, function"] = lambda: cto.nccl_all_reduce(same, group=group)
    small_sum["torch"] = lambda: dist.all_reduce(small)  # the host is most of it
    many_sums["torch coalesced"] = lambda: dist.all_reduce_coalesced(many)
    many_sums["torch one by one"] = lambda: [dist.all_reduce(t) for t in many]
    large_sum = {"ours": sums(group, [x])["ours"], "torch": lambda: dist.all_reduce(x)}
    gathers = moves(cto.NcclAllGather(group=group), x, size)
    gathers["torch"] = lambda: dist.all_gather_into_tensor(x, shard)
    scatters = moves(cto.NcclReduceScatter(group=group), x, size)
    scatters["torch"] = lambda: dist.reduce_scatter_tensor(shard, x)
    results: dict[str, Case] = {
        "all-reduce 1 KiB": (small_sum, 1024, 2 * once),
        "all-reduce 256 MiB": (large_sum, 4 * LARGE, 2 * once),
        "all-reduce 500 x 64 KiB": (many_sums, 4 * MANY * SMALL, 2 * once),
        "all-gather 256 MiB": (gathers, 4 * LARGE, once),
        "reduce-scatter 256 MiB": (scatters, 4 * LARGE, once),
    }
    if size & (size - 1) == 0:
        adasum, arrays = cto.AdasumAllReduce(group=group), [cupy.from_dlpack(x)]
        results["Adasum 256 MiB"] = ({"ours": lambda: adasum(arrays)}, 4 * LARGE, 2 * once)
    return results


def sums(group: cto.ProcessGroup, tensors: list[Any]) -> Calls:
    """Return all-reduces over the tensors' memory: ours, ours bound, NCCL's by hand."""
    reduce_all, arrays = cto.NcclAllReduce(group=group), [cupy.from_dlpack(t) for t in tensors]
    return {
        "ours": lambda: reduce_all(arrays),
        "ours, bound": reduce_all.bound(arrays),
        "by hand": by_hand(group, arrays),
    }


def moves(op: Any, x: Any, size: int) -> Calls:
    """Return calls of a gather or scatter with 1 and with 8 arrays of each of `size` ranks."""
    pieces, parts = parts_of(x, size), parts_of(x, 8 * size)
    return {"ours": lambda: op(pieces), "ours, 8 arrays a rank": lambda: op(parts)}


def by_hand(group: cto.ProcessGroup, arrays: list[Any]) -> Call:
    """Return an all-reduce by CuPy's binding of NCCL, over the group's ranks."""
    binding = nccl.library()
    made = nccl.communicator(group, "NcclAllReduce", group.everyone).made
    number, total = binding.NCCL_FLOAT32, binding.NCCL_SUM

    def each() -> None:
        stream = cupy.cuda.get_current_stream().ptr
        for x in arrays:
            made.allReduce(x.data.ptr, x.data.ptr, x.size, number, total, stream)

    def together() -> None:
        binding.groupStart()
        each()
        binding.groupEnd()

    return each if len(arrays) == 1 else together


def parts_of(x: Any, n: int) -> list[Any]:
    """Return n views of x, one behind the other; the last has an element less."""
    ours, each = cupy.from_dlpack(x), LARGE // n
    return [ours[i * each : (i + 1) * each - (i == n - 1)] for i in range(n)]


def seconds(call: Call) -> tuple[float, float]:
    """Return seconds of a call (on the GPU, on the host), of BATCH calls."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.distributed.barrier()
    torch.cuda.synchronize()
    start.record()
    began = time.perf_counter()
    for _ in range(BATCH):
        call()
    host = time.perf_counter() - began
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / BATCH, host / BATCH


def rotate(names: list[str], i: int) -> list[str]:
    """Return the names in the order of the i-th round, whose first is another in each.

    So that none is always the first behind another case, with cold caches of the host.
    """
    return names[i % len(names) :] + names[: i % len(names)]


def call_rows(xp: Any, group: cto.ProcessGroup, _: bool, rounds: int) -> Iterator[Row]:
    """Yield a row for each case and who made the calls."""
    import torch
    from torch import distributed as dist

    torch.cuda.set_device(xp.cuda.runtime.getDevice())
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    stream, times = torch.cuda.Stream(), dict[tuple[str, str], list[tuple[float, float]]]()
    with torch.cuda.stream(stream), cupy.cuda.Stream.from_external(stream):
        result = cases(group)
        for i in range(rounds + 2):
            for case, (calls, _, _) in result.items():
                for who in rotate(list(calls), i):
                    times.setdefault((case, who), []).append(seconds(calls[who]))
        for (case, who), times_of in times.items():
            _, nbytes, factor = result[case]
            gpu, host = (statistics.median(column) for column in zip(*times_of[2:], strict=True))
            slowest = torch.tensor(host, device="cuda")
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            yield {
                "case": f"{case}, {who}",
                "ms": gpu * 1e3,
                "GB/s": nbytes * factor / gpu / 1e9,
                "host us": host * 1e6,
                "slowest us": slowest.item() * 1e6,
            }
    dist.destroy_process_group()


# ---- steps --------------------------------------------------------------------------------------


def pause() -> None:
    """Do nothing: the preparation of a call that needs none."""


class Clock:
    """Milliseconds of calls, from when all ranks begin to when this one's device is done."""

    def __init__(self, xp: Any, group: cto.ProcessGroup) -> None:
        self._group, self._xp, self._one = group, xp, [xp.ones(1, np.float32)]
        self._meet = cto.NcclAllReduce(group=group)

    def of(self, call: Call, before: Call) -> float:
        """Return the milliseconds of `call`, after `before`, which is not counted."""
        before()
        self._meet(self._one)
        self._wait()
        began = time.perf_counter()
        call()
        self._wait()
        return (time.perf_counter() - began) * 1e3

    def slowest(self, own: list[float]) -> list[float]:
        """Return the longest of each time over the ranks."""
        every = np.zeros((self._group.size, len(own)))
        every[self._group.rank] = own
        (every,) = cto.nccl_all_reduce([every], group=self._group)
        return [float(ms) for ms in every.max(axis=0)]

    def _wait(self) -> None:
        if self._xp is not np:
            self._xp.cuda.Device().synchronize()


def medians(clock: Clock, calls: dict[str, tuple[Call, Call]], rounds: int) -> dict[str, float]:
    """Return median milliseconds of calls made in turns, the slowest rank's; two rounds warm up.

    calls: by name, (what precedes the call and is not counted, the call).
    """
    times_of: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 2):
        for name, (before, call) in calls.items():
            times_of[name].append(clock.of(call, before))
    own = [statistics.median(result[2:]) for result in times_of.values()]
    return dict(zip(calls, clock.slowest(own), strict=True))


def step_rows(xp: Any, group: cto.ProcessGroup, quick: bool, rounds: int) -> Iterator[Row]:
    """Yield rows of AdamW's step, whole on each rank and divided among them."""
    shapes = FEW_SHAPES if quick else SHAPES
    gradients = [xp.full(shape, 1e-3, np.float32) for shape in shapes]
    parameters = [xp.ones(shape, np.float32) for shape in shapes]
    add_up, clock = cto.NcclAllReduce(group=group), Clock(xp, group)
    whole = cto.AdamW(parameters, 1e-4)
    divided = cto.AdamW(parameters, 1e-4, group=group)
    own = cto.AdamW([part for part in divided._own_parts()[0] if part.size], 1e-4)
    parts = [part for part in divided._parts_of(dict(enumerate(gradients)), xp.ones(1, np.float32))]

    def all_reduced() -> None:
        add_up(gradients)
        whole.step(gradients, loss_scale=float(group.size))

    result = medians(clock, {
        "all-reduce and full step": (pause, all_reduced),
        "reduce-scatter, update, all-gather": (pause, lambda: divided.step(gradients)),
        "full update alone": (pause, lambda: whole.step(gradients)),
        "own update alone": (pause, lambda: own.step(parts)),
    }, rounds)  # fmt: skip
    yield from ({"case": name, "ms": ms} for name, ms in result.items())
    times, memory = list(result.values()), [nbytes(whole), nbytes(divided._inner)]
    yield {"case": "step of the sharded over the other's", "ratio": times[1] / times[0]}
    yield {"case": "update alone, own over full", "ratio": times[3] / times[2]}
    yield {"case": "bytes of moments, own over full", "ratio": memory[1] / memory[0]}


def nbytes(optimizer: Any) -> int:
    return sum(array.nbytes for result in optimizer._moments.values() for array in result)


# ---- buckets ------------------------------------------------------------------------------------


class Training:
    """Forward and backward passes of the transformer on this rank."""

    def __init__(self, xp: Any, quick: bool) -> None:
        """Make the model and a batch, on the CPU if xp is NumPy; quick: small ones."""
        import torch
        from training_models import GPT, text

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
            result = (network or self.network)(self._x)
        self._loss = torch.nn.functional.cross_entropy(result.float(), self._target)

    def backward(self) -> None:
        self._loss.backward()
        self._loss = None


def bucket_rows(xp: Any, group: cto.ProcessGroup, quick: bool, rounds: int) -> Iterator[Row]:
    """Yield rows of a backward pass with buckets of several sizes, and with PyTorch's."""
    training, clock = Training(xp, quick), Clock(xp, group)
    for megabytes in MEGABYTES:
        buckets = cto.torch.GradientBuckets(training.parameters, group, megabytes=megabytes)
        yield from overlap_rows(f"buckets of {megabytes:g} MB", clock, rounds, {
            "backward pass": (training.forward, lambda b=buckets: without(b, training.backward)),
            "with": (training.forward, lambda b=buckets: (training.backward(), b.wait())),
            "alone": (pause, lambda b=buckets: send_all(b, training.parameters)),
        })  # fmt: skip
        buckets.close()
    if xp is not np and group.size > 1:
        yield from peer_rows(training, clock, rounds)


def overlap_rows(
    name: str, clock: Clock, rounds: int, calls: dict[str, tuple[Call, Call]]
) -> Iterator[Row]:
    """Yield rows of a backward pass alone, with communication, and of communication alone; last the
    share of the communication's time that the pass hides.

    calls: these three in this order.
    """
    result = medians(clock, calls, rounds)
    yield from ({"case": f"{name}: {case}", "ms": ms} for case, ms in result.items())
    plain, both, alone = result.values()
    yield {"case": f"{name}: hidden", "ratio": 1 - (both - plain) / alone}


def without(buckets: Any, backward: Callable[[], None]) -> None:
    """Make a backward pass whose gradients are not exchanged."""
    with buckets.paused():
        backward()


def send_all(buckets: Any, parameters: list[Any]) -> None:
    """Exchange all gradients at once, in the order of the buckets."""
    for place in itertools.chain.from_iterable(buckets._buckets._buckets):
        buckets._buckets.ready(place, parameters[place].grad)
    buckets.wait()


def peer_rows(training: Training, clock: Clock, rounds: int) -> Iterator[Row]:
    """Yield rows of DistributedDataParallel, over a communicator of its own.

    Its communication alone is measured with arrays as large as its buckets.
    """
    import torch
    from torch import distributed as dist

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

        yield from overlap_rows(f"DistributedDataParallel, {megabytes:g} MB", clock, rounds, {
            "backward pass": (forward_alone, lambda d=wrapped: without_sync(d, training.backward)),
            "with": (lambda d=wrapped: training.forward(d), training.backward),
            "alone": (pause, alone),
        })  # fmt: skip
        del wrapped, forward_alone
        gc.collect()  # whose hooks would go on
    dist.destroy_process_group()


def without_sync(wrapped: Any, backward: Callable[[], None]) -> None:
    with wrapped.no_sync():
        backward()


# ---- any of them ---------------------------------------------------------------------------------


def report(out: Path | None, group: cto.ProcessGroup, result: Iterator[Row]) -> None:
    """Print a line for each case as it comes, and write all to a file."""
    rows = []
    for row in result:
        rows.append(row)
        if group.rank == 0:
            figures = (f"{row[name]:10.3f} {name}" for name in row if name != "case")
            print(f"{row['case']:44} {' '.join(figures)}", flush=True)
    if group.rank == 0 and out is not None:
        out.write_text(json.dumps(rows, indent=1))


MEASURED = {"calls": call_rows, "steps": step_rows, "buckets": bucket_rows}


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("measured", type=click.Choice(list(MEASURED)))
@click.option("--rounds", default=20, show_default=True, type=click.IntRange(1))
@click.option("--quick", is_flag=True, help="Small sizes.")
@click.option("--provider", type=click.Choice(["cpu", "cuda"]), default="cuda", show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="JSON of all rows.")
def main(measured: str, rounds: int, quick: bool, provider: str, out: Path | None) -> None:
    """Measure, and print a line for each case."""
    if measured == "calls" and (quick or provider == "cpu"):
        raise click.UsageError("calls are measured on GPUs, at one size")
    with cto.ProcessGroup() as group:
        xp = library(provider, group)
        if group.rank == 0:
            print(f"NCCL_MAX_CTAS {os.environ.get('NCCL_MAX_CTAS', 'unset')}", flush=True)
        report(out, group, MEASURED[measured](xp, group, quick, rounds))


if __name__ == "__main__":
    main()
