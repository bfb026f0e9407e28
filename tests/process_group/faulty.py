# SPDX-License-Identifier: MIT
"""Ranks of which one is killed; the others print what they are told of it, and end with status 3.

Arguments: which rank is killed, and when: before the rendezvous, between two calls, inside one.
"""

import os
import signal
import sys
import threading
import time

import numpy as np

import cupy_training_ops as cto

VICTIM, MOMENT = int(sys.argv[1]), sys.argv[2]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def reduce_all(group: cto.ProcessGroup) -> None:
    cto.nccl_all_reduce([np.ones(5, np.float32)], group=group)


def main(is_victim: bool) -> None:
    if is_victim and MOMENT == "before":
        die()
    with cto.ProcessGroup() as group:
        reduce_all(group)
        if is_victim and MOMENT == "between":
            die()
        if is_victim:
            threading.Timer(0.3, die).start()
        elif group.rank == group.size - 1 and MOMENT == "inside":
            time.sleep(0.8)  # so that the others wait inside the call
        reduce_all(group)


started = time.monotonic()
try:
    main(int(os.environ["RANK"]) == VICTIM)
except cto.GroupError as error:
    print(f"{error} [{time.monotonic() - started:.1f} s]")
    sys.exit(3)
