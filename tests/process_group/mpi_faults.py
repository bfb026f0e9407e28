# SPDX-License-Identifier: MIT
"""Ranks under MPI of which one meets a fault: `mpi_faults.py KIND VICTIM`."""

import contextlib
import os
import signal
import sys
import threading
import time

import numpy as np

import cupy_training_ops as cto

KIND, VICTIM = sys.argv[1], int(sys.argv[2])


class InterruptError(Exception):
    pass


def interrupt(*_):
    raise InterruptError


def strike():
    number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "interrupt": signal.SIGALRM}[KIND]
    sys.stdout.write(f"struck {time.time()}\n")
    sys.stdout.flush()
    os.kill(os.getpid(), number)


group = cto.ProcessGroup.from_mpi()
signal.signal(signal.SIGALRM, interrupt)
if group.rank == VICTIM:
    threading.Timer(0.3, strike).start()
i = 0
while True:
    x = np.full(1 + 5000 * (i % 3), i + group.rank, np.float64)
    with contextlib.suppress(InterruptError):
        expected = group.size * i + sum(range(group.size))
        assert (cto.nccl_all_reduce([x], group=group)[0] == expected).all()
        i += 1
