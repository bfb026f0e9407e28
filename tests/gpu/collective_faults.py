# SPDX-License-Identifier: MIT
"""What happens to rank 1 in the middle of collectives on GPUs: parts of `collective_ranks`."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import cupy
import numpy as np
from process_group.moments import InterruptError, interrupt

import cupy_training_ops as cto


def killed(group) -> None:
    """Rank 1 ends in the middle of an all-reduce."""
    x = cupy.ones(2**28, np.float32)
    op = cto.NcclAllReduce(group=group)
    op([x])
    cupy.cuda.Device().synchronize()
    if group.rank == 1:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    until = time.monotonic() + 30
    while time.monotonic() < until:
        for _ in range(5):
            op([x])
        cupy.cuda.get_current_stream().synchronize()


def stopped(group) -> None:
    """Rank 1 stops in the middle of all-reduces, until somebody lets it go on."""
    x, op = cupy.ones(2**28, np.float32), cto.NcclAllReduce(group=group)
    op([x])
    cupy.cuda.Device().synchronize()
    if group.rank == 1:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGSTOP)).start()
    until = time.monotonic() + 30
    while time.monotonic() < until:
        for _ in range(5):
            op([x])
        cupy.cuda.get_current_stream().synchronize()


def interrupted(group) -> None:
    """Rank 1 is interrupted in calls, catches it, and makes those again that had not begun."""
    x, op = cupy.zeros(1000, np.int64), cto.NcclAllReduce(group=group)
    rng, i = random.Random(7), 0
    once = group.size * (group.size - 1) // 2  # what the ranks' own numbers add to
    again = lambda: signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 2e-3))  # noqa: E731
    op([x])
    if group.rank == 1:
        signal.signal(signal.SIGALRM, interrupt)
        again()
    try:
        while i < 6000:
            x[...] = i + group.rank
            begun = group.begun
            try:
                op([x])
            except InterruptError:
                again()
                if group.begun == begun:
                    continue
            actual = x.tolist()
            group.check()
            assert actual == [group.size * i + once] * len(actual), (i, actual[:3])
            i += 1
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # as this process ends, too
    print("never wrong")


def late(group) -> None:
    """Rank 1 is alive, but in no call: the other's outlasts the timeout."""
    x = cupy.ones(1000, np.float32)
    op = cto.NcclAllReduce(group=group)
    op([x])
    cupy.cuda.Device().synchronize()
    if group.rank == 1:
        time.sleep(group.timeout + 4)
    op([x])
    cupy.cuda.get_current_stream().synchronize()
    group.check()


def raises(group) -> None:
    """Rank 1 raises while the other's call waits on the GPU."""
    x = cupy.ones(1000, np.float32)
    op = cto.NcclAllReduce(group=group)
    op([x])
    if group.rank == 1:
        time.sleep(0.5)
        raise ValueError("no data")
    op([x])
    cupy.cuda.get_current_stream().synchronize()
    group.check()
