# SPDX-License-Identifier: MIT
"""Ranks under MPI of which one meets a fault at a random moment: `mpi_faults.py KIND SEED`.

They call random collectives and compare every result, as in moments.py. Who ends well says so.
"""

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from process_group.moments import AFTER, HANDLERS, RUN, strike, work

import cupy_training_ops as cto

KIND, SEED = sys.argv[1], int(sys.argv[2])


def say(words: str) -> None:
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


def in_a_line(_: object, error: BaseException, __: object) -> None:
    """For launchers mix what ranks say at once, in the middle of lines where it is long."""
    say(f"rank {group.rank}: {error!r}")


def hit() -> None:
    say(f"struck rank {group.rank} at {time.time()} s")
    strike(KIND, os.getpid())


rng = random.Random(SEED)
group = cto.ProcessGroup.from_mpi()
sys.excepthook = in_a_line
victim, moment = rng.randrange(group.size), rng.uniform(0, RUN)
if KIND in HANDLERS:
    signal.signal(signal.SIGALRM, HANDLERS[KIND])
if group.rank == victim:
    threading.Timer(moment, hit).start()
work(group, SEED, time.monotonic() + RUN + AFTER)
group.close()
say("right")
