# SPDX-License-Identifier: MIT
"""Collectives beside torch.distributed with the same NCCL, in one run; needs two GPUs or more.

    cupy-training-ops launch --ranks 2 scripts/collective_benchmark.py [OUT.json]

Cases take turns: each round measures all of them, ours beside PyTorch's and calls of CuPy's binding
written by hand, by events around a batch of calls; the median of the rounds counts, of host times
also that of the slowest rank. Bus bandwidths are those of NCCL's own tests: of n ranks
2 (n - 1) / n bytes for an all-reduce, (n - 1) / n for the others.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import cupy
import torch
import torch.distributed as dist

import cupy_training_ops as cto
from cupy_training_ops.process_group.nccl import communicator, library

MIB = 2**20
ROUNDS, CALLS = 15, 10
LARGE = 256 * MIB // 4  # elements of float32
MANY, SMALL = 500, 65_536 // 4

NBYTES = 4 * LARGE

Call = Callable[[], object]
Calls = dict[str, Call]  # by who makes them
Case = tuple[Calls, float, float]  # the bytes that count, and the factor of the bus


def cases(group: cto.ProcessGroup) -> dict[str, Case]:
    """By name."""
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
    found: dict[str, Case] = {
        "all-reduce 1 KiB": (small_sum, 1024, 2 * once),
        "all-reduce 256 MiB": (large_sum, NBYTES, 2 * once),
        "all-reduce 500 x 64 KiB": (many_sums, 4 * MANY * SMALL, 2 * once),
        "all-gather 256 MiB": (gathers, NBYTES, once),
        "reduce-scatter 256 MiB": (scatters, NBYTES, once),
    }
    if size & (size - 1) == 0:
        adasum, arrays = cto.AdasumAllReduce(group=group), [cupy.from_dlpack(x)]
        found["Adasum 256 MiB"] = ({"ours": lambda: adasum(arrays)}, NBYTES, 2 * once)
    return found


def sums(group: cto.ProcessGroup, tensors: list[Any]) -> Calls:
    """All-reduces over the tensors' memory."""
    reduce_all, arrays = cto.NcclAllReduce(group=group), [cupy.from_dlpack(t) for t in tensors]
    return {
        "ours": lambda: reduce_all(arrays),
        "ours, bound": reduce_all.bound(arrays),
        "by hand": by_hand(group, arrays),
    }


def moves(op: Any, x: Any, size: int) -> Calls:
    """One array of each rank, and several."""
    pieces, parts = owned(x, size), owned(x, 8 * size)
    return {"ours": lambda: op(pieces), "ours, 8 arrays a rank": lambda: op(parts)}


def by_hand(group: cto.ProcessGroup, arrays: list[Any]) -> Call:
    """NCCL called as CuPy has it, over the same ranks."""
    op = "NcclAllReduce"
    made = communicator(group, op, group.everyone).made
    nccl = library()
    number, total = nccl.NCCL_FLOAT32, nccl.NCCL_SUM

    def each() -> None:
        stream = cupy.cuda.get_current_stream().ptr
        for x in arrays:
            made.allReduce(x.data.ptr, x.data.ptr, x.size, number, total, stream)

    def together() -> None:
        nccl.groupStart()
        each()
        nccl.groupEnd()

    return each if len(arrays) == 1 else together


def owned(x: Any, n: int) -> list[Any]:
    """Views of x, one behind the other, of which each rank owns an equal part."""
    ours, each = cupy.from_dlpack(x), LARGE // n
    return [ours[i * each : (i + 1) * each - (i == n - 1)] for i in range(n)]


def seconds(call: Call) -> tuple[float, float]:
    """Seconds of a call on the GPU, and on the host."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    dist.barrier()
    torch.cuda.synchronize()
    start.record()
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    host = time.perf_counter() - began
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / CALLS, host / CALLS


def rotated(names: list[str], i: int) -> list[str]:
    """Another one first in each round: behind another case the host's caches have nothing of it."""
    return names[i % len(names) :] + names[: i % len(names)]


def measured(group: cto.ProcessGroup) -> list[dict[str, object]]:
    """A row for each case and who did it."""
    found = cases(group)
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for i in range(ROUNDS):
        for case, (calls, _, _) in found.items():
            for who in rotated(list(calls), i):
                times.setdefault((case, who), []).append(seconds(calls[who]))
    rows = []
    for (case, who), taken in times.items():
        _, nbytes, factor = found[case]
        gpu, host = (statistics.median(column) for column in zip(*taken[2:], strict=True))
        bus, slowest = nbytes * factor / gpu / 1e9, torch.tensor(host, device="cuda")
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        row = {"case": case, "who": who, "ms": gpu * 1e3, "GB/s": bus, "host us": host * 1e6}
        rows.append(row | {"slowest us": slowest.item() * 1e6})
    return rows


def main() -> None:
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    cupy.cuda.Device(rank).use()
    with cto.ProcessGroup() as group:
        port = str(int(os.environ["MASTER_PORT"]) + 1)
        os.environ["MASTER_PORT"] = port
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), cupy.cuda.Stream.from_external(stream):
            rows = measured(group)
        if group.rank == 0:
            for row in rows:
                print("{case:24} {who:21} {ms:8.3f} ms {GB/s:6.1f} GB/s "
                      "host {host us:7.1f} {slowest us:7.1f} us".format(**row))  # fmt: skip
            if len(sys.argv) > 1:
                Path(sys.argv[1]).write_text(json.dumps(rows, indent=1))
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
