# SPDX-License-Identifier: MIT
"""Faults at random moments of random collectives: `moments.py ENGINE KINDS COUNT SEED TIMEOUT`.

For each trial ranks are forked; while they call one collective after another and compare every
result with what it has to be, something happens to one of them, or to torch.distributed's store,
which then answers as little as one on a machine that is out of reach. Prints a line a trial: how
each rank ended (right, group: GroupError, wrong, error: another one, own: memory for its own
arrays, stuck, or a status), and how many seconds after.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import resource
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import numpy.ma  # what the first call imports, before memory is short
import numpy.random
from ranks import connected

import cupy_training_ops as cto
from cupy_training_ops.families.collective.plan import Collective
from cupy_training_ops.process_group.embedded import Embedded
from cupy_training_ops.process_group.group import Sizes

ENDS = ("right", "group", "wrong", "error", "own")  # statuses
RUN = 0.15  # seconds until the fault, at most
AFTER = 0.3  # and that all go on for, if it changes nothing
SPARE, PIECE = 8 << 20, 1 << 16  # bytes that there are where memory is short, one by one
HELD: list[bytearray] = []
MOST = 2**18  # elements

Ranks = Callable[[int, int, Any, float], cto.ProcessGroup]


class InterruptError(KeyboardInterrupt):
    """What the handler of a signal raises; the frame takes ordinary errors for its values'."""


# ---- what happens --------------------------------------------------------------------------------


def interrupt(*_: object) -> None:
    """Raise, where a call is under way: what comes before or after it is the caller's matter."""
    frame = sys._getframe()
    while frame is not None and frame.f_code is not Collective.__call__.__code__:
        frame = frame.f_back
    if frame is None:
        signal.setitimer(signal.ITIMER_REAL, 1e-4)
    else:
        raise InterruptError


def no_memory(*_: object) -> None:
    """Take all that there is, but for a part: what is freed stays, and MPI's threads have 64 MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    with contextlib.suppress(MemoryError):
        while True:
            HELD.append(bytearray(PIECE))
    del HELD[-SPARE // PIECE :]


def no_descriptors(*_: object) -> None:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.close(int(name))


HANDLERS = {"interrupt": interrupt, "memory": no_memory, "descriptors": no_descriptors}
KINDS = ("kill", "stop", *HANDLERS)
OF_STORES = "unreachable"


def strike(kind: str, victim: int) -> None:
    os.kill(victim, {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}.get(kind, signal.SIGALRM))


# ---- a rank --------------------------------------------------------------------------------------


def of_embedded(rank: int, _: int, place: Any, timeout: float) -> cto.ProcessGroup:
    for other, sockets in enumerate(place):
        for sock in sockets.values():
            if other != rank:
                sock.close()
    engine = Embedded(rank, place[rank], timeout)
    return cto.ProcessGroup._over(engine, Sizes())


def of_torch(rank: int, n: int, place: Any, timeout: float) -> cto.ProcessGroup:
    import torch.distributed as dist

    port, trial = place
    store = dist.PrefixStore(trial, dist.TCPStore("127.0.0.1", port, is_master=False))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=n)
    return cto.ProcessGroup.from_torch(timeout=timeout)


RANKS: dict[str, Ranks] = {"embedded": of_embedded, "torch": of_torch}


def one_call(group: cto.ProcessGroup, i: int, seed: int, is_over: bool) -> bool:
    """The i-th collective, the same on all ranks; whether rank 0 says that it is over."""
    rng = np.random.default_rng((seed, i))
    n, size = int(rng.choice([1, 100, 5000, MOST])), group.size
    values = rng.integers(-1000, 1000, size)
    x = np.full(n + 1, values[group.rank], np.float64)
    x[-1] = is_over and group.rank == 0
    expected = values.sum()
    if i % 3 == 1:
        (x,) = cto.nccl_all_gather([x[-2:].copy()], group=group)  # the first rank's
        expected = values[0]
    elif i % 3 == 2:
        a, b = (int(r) for r in rng.permutation(size)[:2])
        keywords = {"group": group, "tag": i, "element_types": [np.float64]}
        if group.rank == a:
            cto.send(True, b, [x], **keywords)
        if group.rank == b:
            _, (y,) = cto.recv(True, a, arrays="numpy", **keywords)
            refuse_wrong(y[:-1], values[a])
        return False  # one collective: it may have to be made again
    else:
        (x,) = cto.nccl_all_reduce([x], group=group)
    refuse_wrong(x[:-1], expected)
    return bool(x[-1])


def refuse_wrong(actual: np.ndarray, expected: np.int64) -> None:
    """End at once, as nothing else here does."""
    if not (actual == expected).all():
        os.write(2, b"a wrong number\n")
        os._exit(2)


def work(group: cto.ProcessGroup, seed: int, until: float) -> None:
    """Calls until rank 0 says that it is over; one that was never begun is made again."""
    i, is_over = 0, False
    while not is_over:
        with contextlib.suppress(InterruptError):
            is_over = one_call(group, i, seed, time.monotonic() > until)
            i += 1


def be_rank(ranks: Ranks, rank: int, n: int, place: Any, options: Any, ready: int) -> None:
    kind, seed, timeout = options
    status = 3
    try:
        group = ranks(rank, n, place, timeout)
        if kind in HANDLERS:
            signal.signal(signal.SIGALRM, HANDLERS[kind])
        os.write(ready, b"x")
        work(group, seed, time.monotonic() + RUN + AFTER)
        status = 0
    except cto.GroupError:
        status = 1
    except BaseException as error:
        # Without memory Python itself raises SystemError, and an import this OSError.
        is_memory = isinstance(error, MemoryError | SystemError)
        is_memory |= isinstance(error, OSError) and error.errno == errno.ENOMEM
        if is_memory and not group._engine.fault:
            status = 4  # of this script's own arrays, or before others heard of the call
        with contextlib.suppress(BaseException):
            os.write(2, f"rank {rank}: {error!r}\n".encode())
    finally:
        os._exit(status)


# ---- a trial -------------------------------------------------------------------------------------


def trial(engine: str, kind: str, seed: int, timeout: float, store: Any) -> dict[str, Any]:
    rng = random.Random(seed)
    n = rng.randint(2, 4)
    victim = rng.randrange(n)
    place = connected(n) if engine == "embedded" else (store[0], f"{kind} {seed}")
    reader, ready = os.pipe()
    numbers = []
    for rank in range(n):
        number = os.fork()
        if not number:
            be_rank(RANKS[engine], rank, n, place, (kind, seed, timeout), ready)
        numbers.append(number)
    if engine == "embedded":
        for sock in (sock for sockets in place for sock in sockets.values()):
            sock.close()
    for _ in range(n):
        if not select.select([reader], [], [], 30)[0]:
            return {"n": n, "victim": victim, "ends": [["did not meet", 0.0]] * n, "seed": seed}
        os.read(reader, 1)
    time.sleep(rng.uniform(0, RUN))
    if kind == OF_STORES:
        os.kill(store[1], signal.SIGSTOP)
    else:
        strike(kind, numbers[victim])
    actual = gathered(numbers, None if kind != "stop" else victim, timeout)
    if kind == OF_STORES:
        os.kill(store[1], signal.SIGCONT)
    os.close(reader)
    os.close(ready)
    return {"n": n, "victim": victim, "ends": actual, "seed": seed}


def gathered(numbers: list[int], stopped: int | None, timeout: float) -> list[Any]:
    """How each ended, and how many seconds after; who was stopped goes on after the others."""
    since, actual = time.monotonic(), [None] * len(numbers)
    while None in actual and time.monotonic() - since < timeout + 20:
        others = [end for rank, end in enumerate(actual) if rank != stopped]
        if stopped is not None and None not in others and actual[stopped] is None:
            os.kill(numbers[stopped], signal.SIGCONT)
        for rank, number in enumerate(numbers):
            if actual[rank] is None:
                pid, status = os.waitpid(number, os.WNOHANG)
                actual[rank] = (ended(status), time.monotonic() - since) if pid else None
        time.sleep(0.002)
    for number, end in zip(numbers, actual, strict=True):
        if end is None:
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)
    return [end or ("stuck", 0.0) for end in actual]


def ended(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return ENDS[code] if 0 <= code < len(ENDS) else f"status {code}"


@contextlib.contextmanager
def store() -> Iterator[tuple[int, int]]:
    """Where ranks meet, port and process; like torchrun's none of them, nor who forks them."""
    code = (
        "import sys, torch.distributed as d; "
        "s = d.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False); "
        "print(s.port, flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as server:
        yield int(server.stdout.readline()), server.pid
        server.stdin.close()


def main(engine: str, kinds: str, count: str, seed: str, timeout: str) -> None:
    """So many trials of each kind."""
    with store() if engine == "torch" else contextlib.nullcontext() as place:
        if engine == "torch":
            import torch.distributed  # noqa: F401 - once, before any fork
        for number in range(int(seed), int(seed) + int(count)):
            for kind in kinds.split(","):
                actual = trial(engine, kind, number, float(timeout), place)
                print(json.dumps({"kind": kind, **actual}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
