# SPDX-License-Identifier: MIT
"""Host time of eager calls of small arrays on a GPU, as their users write them, beside PyTorch's.

    python3 scripts/call_times.py

Microseconds are medians of single calls; the device is waited for between groups of them. Without a
GPU `scripts/host_time.py` has the same calls with launches left out.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import click
import cupy
import numpy as np
import torch
from cases.calls import CASES, Arrays

GROUP = 200  # calls between two waits: the device's queue holds more


@click.command()
@click.option("--calls", type=click.IntRange(GROUP), default=10_000, show_default=True)
@click.option("--only", default="", help="Only calls whose name contains this.")
def main(calls: int, only: str) -> None:
    """Print microseconds of each call, of PyTorch's nearest, and of cupy.add in the same run."""
    of = Arrays(array, tensor)
    x, y, out = (array((64, 64), "f4") for _ in range(3))
    click.echo("| call | us | PyTorch's nearest |\n|---|---|---|")
    for name, case in CASES.items():
        if only in name:
            nearest = "" if case.peer is None else f"{median(case.peer(of), calls):.1f}"
            click.echo(f"| {name} | {median(case.make(of), calls):.1f} | {nearest} |")
    click.echo(f"| cupy.add, out= | {median(lambda: cupy.add(x, y, out=out), calls):.1f} | |")


def median(call: Callable[[], Any], calls: int) -> float:
    """Microseconds of a call."""
    for _ in range(20):
        call()
    seconds: list[float] = []
    while len(seconds) < calls:
        cupy.cuda.Device().synchronize()
        for _ in range(GROUP):
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e6


def array(shape: tuple[int, ...], dtype: str) -> Any:
    """Small numbers of either kind, which are indices too."""
    return cupy.asarray(np.random.default_rng(0).integers(0, 50, shape).astype(dtype))


def tensor(shape: tuple[int, ...], dtype: str) -> Any:
    """The same as PyTorch's own."""
    return torch.from_dlpack(array(shape, dtype)).clone()


if __name__ == "__main__":
    main()
