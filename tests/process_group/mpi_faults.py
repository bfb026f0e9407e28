# SPDX-License-Identifier: MIT
"""Ranks under MPI of which one meets a fault at a random moment: `mpi_faults.py KIND SEED FOLDER`.

They call random collectives and compare every result, as in moments.py. Who ends well says so, in
a file of FOLDER.
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

KIND, SEED, FOLDER = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])


def say(words: str) -> None:
    """Append a line to this rank's own file: launchers mix the lines of several ranks."""
    with (FOLDER / f"rank-{group.rank}").open("a") as file:
        file.write(words + "\n")


def say_error(_: object, error: BaseException, __: object) -> None:
    say(f"rank {group.rank}: {error!r}")


def hit() -> None:
    say(f"struck rank {group.rank} at {time.time()} s")
    strike(KIND, os.getpid())


rng = random.Random(SEED)
group = cto.ProcessGroup.from_mpi()
sys.excepthook = say_error
victim, moment = rng.randrange(group.size), rng.uniform(0, RUN)
if KIND in HANDLERS:
    signal.signal(signal.SIGALRM, HANDLERS[KIND])
if group.rank == victim:
    threading.Timer(moment, hit).start()
work(group, SEED, time.monotonic() + RUN + AFTER)
group.close()
say("right")
