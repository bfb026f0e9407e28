# SPDX-License-Identifier: MIT
"""How long a call takes: the median of a few runs after a warm-up."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

RUNS = 5
LAUNCHES = 20  # between two CUDA events, so that the events' own time does not show
BUDGET_S = 1.0  # of runs on the CPU, warm-up aside


def timed(operator: Callable[..., Any], x: Any, xp: Any, whole: bool) -> tuple[Any, float]:
    """A result and how long it takes: once for a part of an array, with care for a whole one."""
    start = time.perf_counter()
    result = operator(x)
    duration = time.perf_counter() - start
    return result, seconds(lambda: operator(x, out=result), xp) if whole else duration


def seconds(call: Callable[[], Any], xp: Any) -> float:
    """The time of one call, on the host's clock for NumPy and between CUDA events for CuPy."""
    call()
    return _host_seconds(call) if xp is np else _device_seconds(call, xp)


def _host_seconds(call: Callable[[], Any]) -> float:
    times: list[float] = []
    while len(times) < RUNS and sum(times) < BUDGET_S:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _device_seconds(call: Callable[[], Any], cupy: Any) -> float:
    return statistics.median(_between_events(call, cupy) for _ in range(RUNS))


def _between_events(call: Callable[[], Any], cupy: Any) -> float:
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for _ in range(LAUNCHES):
        call()
    stop.record()
    stop.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, stop)) / 1e3 / LAUNCHES
