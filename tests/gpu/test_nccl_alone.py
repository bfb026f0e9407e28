# SPDX-License-Identifier: MIT
"""NCCL itself, with a rank alone: what is queued, captured and watched on one GPU."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import cupy_training_ops as cto
from cupy_training_ops.dtypes import FLOAT32
from cupy_training_ops.families.collective import queue
from cupy_training_ops.process_group import nccl

pytestmark = pytest.mark.gpu

cupy = pytest.importorskip("cupy", reason="CuPy is in the extras")

N = 1000


@pytest.fixture
def group():
    """A rank alone on this GPU, if there is NCCL."""
    try:
        nccl.library()
    except cto.ProviderError as error:
        pytest.skip(str(error))
    with cto.ProcessGroup(0, 1, timeout=2.0) as made:
        yield made
    assert "cto-nccl" not in {thread.name for thread in threading.enumerate()}


def table(*arrays) -> np.void:
    struct = np.zeros((), [("at", np.uint64, (len(arrays),))])
    struct["at"] = [array.data.ptr for array in arrays]
    return struct[()]


def gathers(group, n: int) -> queue.Calls:
    """Of so many arrays; of a rank alone they are copies."""
    rows = [queue.row("allGather", N, FLOAT32)] * n
    return queue.Calls(group, "X", group.everyone, rows, None)


WORK = r"""
extern "C" __global__ void work(long long nanoseconds) {
    long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
}
"""


def behind_work(seconds: float) -> None:
    """What is queued on the current stream from here on waits so long.

    For a kernel: a function of Python's needs a lock that who loads a kernel may hold meanwhile.
    """
    cupy.RawKernel(WORK, "work")((1,), (1,), (np.int64(seconds * 1e9),))


@pytest.mark.parametrize("n", [1, 3])
def test_calls_are_queued_on_the_current_stream(group, n) -> None:
    """Behind what is queued there; that of another stream would come too early, or too late."""
    sources = [cupy.zeros(N, np.float32) for _ in range(n)]
    targets = [cupy.zeros(N, np.float32) for _ in range(n)]
    calls, tables = gathers(group, n), (table(*sources), table(*targets))
    calls(*tables)  # which connects
    streams = [cupy.cuda.Stream.null, *(cupy.cuda.Stream(non_blocking=True) for _ in "ab")]
    cupy.cuda.Device().synchronize()
    for step, stream in enumerate(streams * 2):
        with stream:
            behind_work(0.05)
            for i, x in enumerate(sources):
                x.fill(10 * step + i)
            calls(*tables)
            assert [float(y.sum()) for y in targets] == [N * (10 * step + i) for i in range(n)]
        cupy.cuda.Device().synchronize()


def test_calls_are_captured_once_one_was_made(group) -> None:
    x, y = cupy.ones(N, np.float32), cupy.zeros(N, np.float32)
    calls, stream = gathers(group, 1), cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        try:
            with pytest.raises(cto.ProviderError, match="needs one like it before"):
                calls(table(x), table(y))
        finally:
            stream.end_capture()
        calls(table(x), table(y))
        stream.begin_capture()
        calls(table(x), table(y))
        time.sleep(1.2)  # the thread looks meanwhile
        graph = stream.end_capture()
        x.fill(5)
        graph.launch(stream)
        assert float(y.sum()) == 5 * N


def test_what_is_under_way_is_watched(group) -> None:
    """An event comes behind the last call, and is over with it."""
    x, y = cupy.ones(N, np.float32), cupy.zeros(N, np.float32)
    calls = gathers(group, 1)
    calls(table(x), table(y))
    (communicator,) = group.resources.communicators.values()
    assert communicator.last_stream is not None or communicator._marked is not None
    deadline = time.monotonic() + 10
    while communicator.last_stream is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert communicator.last_stream is None
    cupy.cuda.Device().synchronize()
    time.sleep(2.5)  # longer than the timeout
    assert communicator.trouble() == ""
    group.check()


def test_a_call_that_does_not_end_in_time_ends_the_group(group) -> None:
    x, y = cupy.ones(N, np.float32), cupy.zeros(N, np.float32)
    calls, stream = gathers(group, 1), cupy.cuda.Stream(non_blocking=True)
    with stream:
        calls(table(x), table(y))
        behind_work(5.0)
        calls(table(x), table(y))
        stream.synchronize()
        with pytest.raises(cto.GroupError, match="a call on the GPU took longer than 2 seconds"):
            group.check()


def test_a_group_that_has_ended_aborts_its_communicators(group) -> None:
    x, y = cupy.ones(N, np.float32), cupy.zeros(N, np.float32)
    calls = gathers(group, 1)
    calls(table(x), table(y))
    group._engine.end("somebody pulled the plug")
    with pytest.raises(cto.GroupError, match="somebody pulled the plug"):
        calls(table(x), table(y))
    (communicator,) = group.resources.communicators.values()
    deadline = time.monotonic() + 10
    while not communicator._end.locked() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert communicator._end.locked()
