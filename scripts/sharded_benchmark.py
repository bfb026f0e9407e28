# SPDX-License-Identifier: MIT
"""Savings of AdamW over ranks, in one run; for two GPUs or more.

    cupy-training-ops launch --ranks 2 scripts/sharded_benchmark.py --out OUT.json
    cupy-training-ops launch --ranks 2 scripts/sharded_benchmark.py --quick --provider cpu

Steps of 1.3 billion float32 parameters: a reduce-scatter, update and all-gather beside an
all-reduce and a whole update, the updates alone, and bytes of moments. Cases take turns; medians
count, of the slowest rank. --quick has small sizes; on the CPU it shows that it runs.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import click
import numpy as np
from cases.parameters import SHAPES
from train_data_parallel import library

import cupy_training_ops as cto

SMALL = ((300, 200), (513,), (7,))

Call = Callable[[], object]
Row = dict[str, Any]


class Clock:
    """Milliseconds of calls, from when all ranks begin to when this one's device is done."""

    def __init__(self, xp: Any, group: cto.ProcessGroup) -> None:
        self._group, self._xp, self._one = group, xp, [xp.ones(1, np.float32)]
        self._meet = cto.NcclAllReduce(group=group)

    def of(self, call: Call, before: Call = lambda: None) -> float:
        """Milliseconds of one call, behind a call that is not counted."""
        before()
        self._meet(self._one)
        self._done()
        began = time.perf_counter()
        call()
        self._done()
        return (time.perf_counter() - began) * 1e3

    def slowest(self, own: list[float]) -> list[float]:
        """Longest of each time over the ranks."""
        every = np.zeros((self._group.size, len(own)))
        every[self._group.rank] = own
        (every,) = cto.nccl_all_reduce([every], group=self._group)
        return [float(ms) for ms in every.max(axis=0)]

    def _done(self) -> None:
        if self._xp is not np:
            self._xp.cuda.Device().synchronize()


def medians(clock: Clock, calls: dict[str, tuple[Call, Call]], rounds: int) -> dict[str, float]:
    """Medians of calls in turns, each behind a call that is not counted; two rounds warm up."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 2):
        for name, (before, call) in calls.items():
            taken[name].append(clock.of(call, before))
    own = [statistics.median(found[2:]) for found in taken.values()]
    return dict(zip(calls, clock.slowest(own), strict=True))


def steps(xp: Any, group: cto.ProcessGroup, shapes: Any, rounds: int) -> Iterator[Row]:
    """AdamW of a model's parameters, whole on each rank and divided among them."""
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

    nothing = lambda: None  # noqa: E731
    found = medians(clock, {
        "all-reduce and full step": (nothing, all_reduced),
        "reduce-scatter, update, all-gather": (nothing, lambda: divided.step(gradients)),
        "full update alone": (nothing, lambda: whole.step(gradients)),
        "own update alone": (nothing, lambda: own.step(parts)),
    }, rounds)  # fmt: skip
    yield from ({"case": name, "ms": ms} for name, ms in found.items())
    times, held = list(found.values()), [nbytes(whole), nbytes(divided._inner)]
    yield {"case": "step of the sharded over the other's", "ratio": times[1] / times[0]}
    yield {"case": "update alone, own over full", "ratio": times[3] / times[2]}
    yield {"case": "bytes of moments, own over full", "ratio": held[1] / held[0]}


def nbytes(optimizer: Any) -> int:
    return sum(array.nbytes for found in optimizer._moments.values() for array in found)


def report(out: Path | None, group: cto.ProcessGroup, found: Iterator[Row]) -> None:
    """Print a line for each figure as it comes, and write all to a file."""
    rows = []
    for row in found:
        rows.append(row)
        if group.rank == 0:
            unit = f"{row['ms']:10.3f} ms" if "ms" in row else f"{row['ratio']:10.3f}"
            print(f"{row['case']:44} {unit}", flush=True)
    if group.rank == 0 and out is not None:
        out.write_text(json.dumps(rows, indent=1))


def measuring(command: Callable[..., None]) -> Callable[..., None]:
    """The options of commands that measure over ranks."""
    out = click.Path(dir_okay=False, path_type=Path)
    for option in (
        click.option("--rounds", default=20, show_default=True, type=click.IntRange(1)),
        click.option("--quick", is_flag=True, help="Small sizes."),
        click.option(
            "--provider", type=click.Choice(["cpu", "cuda"]), default="cuda", show_default=True
        ),
        click.option("--out", type=out, help="JSON of all rows."),
    ):
        command = option(command)
    return command


@click.command(help=(__doc__ or "").partition("\n")[0])
@measuring
def main(out: Path | None, provider: str, quick: bool, rounds: int) -> None:
    """Measure, and print a line for each figure."""
    with cto.ProcessGroup() as group:
        xp = library(provider, group)
        report(out, group, steps(xp, group, SMALL if quick else SHAPES, rounds))


if __name__ == "__main__":
    main()
