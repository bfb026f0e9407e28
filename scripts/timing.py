# SPDX-License-Identifier: MIT
"""How the benchmark times: calls in one captured graph, inputs rotated past the L2 cache."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cupy

CALLS = 20  # in one graph, or between two events
REPLAYS = 15
ROTATED_NBYTES = 256 * 2**20  # several times the L2 cache
Action = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call; `captured` tells a graph from events around eager calls."""

    median: float
    p20: float
    p80: float
    captured: bool

    @classmethod
    def of(cls, samples: Sequence[float], captured: bool) -> Timing:
        """Return median and percentiles of samples in milliseconds."""
        deciles = statistics.quantiles(samples, n=10, method="inclusive")
        return cls(statistics.median(samples), deciles[1], deciles[7], captured)


def rotations(nbytes: int) -> int:
    """Return how many sets of inputs, each of nbytes, make a call's inputs leave the L2 cache."""
    return max(2, -(-ROTATED_NBYTES // max(nbytes, 1)))


def time_cupy(actions: Sequence[Action], eager: bool = False) -> Timing:
    """Time CuPy work: a graph where it can be captured, else eager calls.

    Eager calls take the host's time or the GPU's, whichever is longer.
    """
    cupy.cuda.Device().synchronize()  # the inputs were made on another stream
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for action in actions:
            action()
        stream.synchronize()
        replay = None if eager else _captured_cupy(actions, stream)
        samples = _event_samples(replay or (lambda: _all(actions)), stream)
    return Timing.of(samples, replay is not None)


def time_torch(actions: Sequence[Action], eager: bool = False) -> Timing:
    """Time PyTorch work the same way, with its own graphs and allocator."""
    import torch

    torch.cuda.synchronize()  # the inputs were made on another stream
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for action in actions:
            action()
    torch.cuda.synchronize()
    replay = None if eager else _captured_torch(actions)
    with torch.cuda.stream(stream):
        samples = _event_samples(
            replay or (lambda: _all(actions)), cupy.cuda.Stream.from_external(stream)
        )
    return Timing.of(samples, replay is not None)


def copy_rate() -> float:
    """Return bytes a millisecond, read plus written, of a 256 MiB copy inside the device.

    Twice the size in one graph node runs at two thirds of the rate on an H200.
    """
    nbytes = 2**28
    pairs = [(cupy.full(nbytes, 7, cupy.uint8), cupy.empty(nbytes, cupy.uint8)) for _ in range(2)]
    return 2 * nbytes / time_cupy([_copy(*pair) for pair in pairs]).median


def _copy(source: Any, target: Any) -> Action:
    return lambda: target.data.copy_from_device_async(
        source.data, source.nbytes, cupy.cuda.get_current_stream()
    )


def _all(actions: Sequence[Action]) -> None:
    """Make CALLS calls, in turns."""
    for i in range(CALLS):
        actions[i % len(actions)]()


def _captured_cupy(actions: Sequence[Action], stream: Any) -> Action | None:
    """Capture CALLS calls in a CUDA graph; return its launch, None if they cannot be captured."""
    stream.begin_capture()
    try:
        _all(actions)
    except Exception:  # what cannot be captured differs by library and call
        _abandon(stream)
        return None
    graph = stream.end_capture()
    return lambda: graph.launch(stream)


def _abandon(stream: Any) -> None:
    """End a capture that failed."""
    try:
        stream.end_capture()
    except cupy.cuda.runtime.CUDARuntimeError:
        return


def _captured_torch(actions: Sequence[Action]) -> Action | None:
    """Capture CALLS calls in PyTorch's graph; return its replay, None if they cannot be."""
    import torch

    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            _all(actions)
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph.replay


def _event_samples(work: Action, stream: Any) -> list[float]:
    """Return REPLAYS samples of the milliseconds of a call; work: makes CALLS of them."""
    samples = []
    work()
    for _ in range(REPLAYS):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(stream)
        work()
        stop.record(stream)
        stop.synchronize()
        samples.append(cupy.cuda.get_elapsed_time(start, stop) / CALLS)
    return samples
