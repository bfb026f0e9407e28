# SPDX-License-Identifier: MIT
"""`encode` killed at random moments: run by test_files.py, in a process of its own that may fork.

Arguments: a seed, how many kills, a .npy file, and a folder for OUT. Prints what was found wrong,
and how often each signal met a process that had not ended.
"""

from __future__ import annotations

import collections
import os
import random
import signal
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from cupy_training_ops.cli import main

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
OLD = b"what was there"


def encoding(source: str, out: Path) -> int:
    """A process that encodes; the time it takes is its own."""
    child = os.fork()
    if child:
        return child
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            main(["encode", source, str(out), "--codec", "pack16", "--force"])
    finally:
        os._exit(0)


def killed(child: int, number: int, after: float) -> bool:
    """Whether the signal came before the end."""
    time.sleep(after)
    ended, _ = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, number)
        os.waitpid(child, 0)
    return not ended


def wrong(number: int, out: Path, before: bytes | None, whole: bytes) -> list[str]:
    """What a signal left that it should not have; makes the folder empty."""
    actual = {path.name: path.read_bytes() for path in out.parent.iterdir()}
    for path in out.parent.iterdir():
        path.unlink()
    content, name = actual.pop(out.name, None), signal.Signals(number).name
    left = [] if number == signal.SIGKILL else [f"{name} left {other}" for other in actual]
    return left if content in (before, whole) else [*left, f"{name} left half of OUT"]


def run(seed: int, count: int, source: str, folder: Path) -> None:
    """So many kills, within the time that one encoding takes."""
    draw, out, met = random.Random(seed), folder / "out", collections.Counter()
    durations = []
    for _ in range(4):  # the shortest, that most signals meet a process on a busy machine too
        begin = time.perf_counter()
        os.waitpid(encoding(source, out), 0)
        durations.append(time.perf_counter() - begin)
    duration = min(durations)
    whole = out.read_bytes()
    for place in range(count):
        number, before = SIGNALS[place % len(SIGNALS)], draw.choice([None, OLD])
        out.unlink(missing_ok=True)
        if before is not None:
            out.write_bytes(before)
        after = draw.uniform(0, 1.1 * duration)
        meets = killed(encoding(source, out), number, after)
        met[signal.Signals(number).name] += meets
        for line in wrong(number, out, before, whole):
            sys.stdout.write(f"after {after:.4f} of {duration:.4f} s: {line}\n")
        duration *= 1.03 if meets else 0.8  # most meet a process, however busy the machine is
    sys.stdout.write(f"{dict(met)}\n")


if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
