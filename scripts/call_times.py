# SPDX-License-Identifier: MIT
"""Host time of eager calls of small arrays on a GPU, as their users write them, beside PyTorch's.

    python3 scripts/call_times.py

Microseconds are medians of single calls; the device is waited for between groups of them. Hosts
differ, and from minute to minute: groups of cupy.add take turns with each call, and the last column
is what the call would take where cupy.add takes 9. Without a GPU `scripts/host_time.py` has the
same calls with launches left out.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import click
import cupy
import numpy as np
import torch
from cases.calls import CASES, Arrays

GROUP = 200  # calls between two waits: the device's queue holds more
ADD = 9.0  # microseconds of cupy.add that figures are given for


@click.command()
@click.option("--calls", type=click.IntRange(GROUP), default=10_000, show_default=True)
@click.option("--only", default="", help="Only calls whose name contains this.")
def main(calls: int, only: str) -> None:
    """Print microseconds of each call, of PyTorch's nearest, and of cupy.add beside the call."""
    of = Arrays(array, tensor)
    x, y, out = (array((64, 64), "f4") for _ in range(3))
    click.echo(
        "| call | us | PyTorch's nearest | cupy.add | where that takes 9 |\n|---|---|---|---|---|"
    )
    for name, case in CASES.items():
        if only in name:
            peer = case.peer and case.peer(of)
            each, add, nearest = medians(
                [case.make(of), lambda: cupy.add(x, y, out=out), peer or (lambda: None)], calls
            )
            beside = f"{nearest:.1f}" if peer else ""
            scaled = each * ADD / add
            click.echo(f"| {name} | {each:.1f} | {beside} | {add:.1f} | {scaled:.1f} |")


def medians(actions: Sequence[Callable[[], Any]], calls: int) -> list[float]:
    """Microseconds of each of several calls, made in turns."""
    for action in actions:
        for _ in range(20):
            action()
    seconds: list[list[float]] = [[] for _ in actions]
    for _ in range(calls // GROUP):
        for action, found in zip(actions, seconds, strict=True):
            cupy.cuda.Device().synchronize()
            found += group(action)
    return [statistics.median(found) * 1e6 for found in seconds]


def group(action: Callable[[], Any]) -> list[float]:
    """Seconds of some calls behind each other."""
    seconds: list[float] = []
    for _ in range(GROUP):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return seconds


def array(shape: tuple[int, ...], dtype: str) -> Any:
    """Small numbers of either kind, which are indices too."""
    return cupy.asarray(np.random.default_rng(0).integers(0, 50, shape).astype(dtype))


def tensor(shape: tuple[int, ...], dtype: str) -> Any:
    """The same as PyTorch's own."""
    return torch.from_dlpack(array(shape, dtype)).clone()


if __name__ == "__main__":
    main()
