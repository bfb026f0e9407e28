# SPDX-License-Identifier: MIT
"""Two checkouts of this project take turns: each in a process of its own, asked through a pipe.

A process serves the functions of the script that started it, with the package, the scripts and the
tests of its checkout before all others. Whatever else the machine does falls on both alike.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import timeit
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

HERE = Path(__file__).resolve().parent.parent
SERVE = "--serve"
SECONDS = 0.005  # of a run of calls
PACKAGE = "cupy_training_ops"


class CheckoutError(click.ClickException):
    """Failure in a checkout's process."""


class Checkout:
    """The process of one checkout."""

    def __init__(self, folder: Path, script: str) -> None:
        """Start `script --serve FOLDER`, which imports the package from the checkout `folder`."""
        self.folder = folder.resolve()
        command = [sys.executable, script, SERVE, str(self.folder)]
        # The script may import the package before it serves.
        path = os.pathsep.join([str(self.folder), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            command,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path.strip(os.pathsep)},
        )

    def __enter__(self) -> Checkout:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()

    def ask(self, question: str, *arguments: Any) -> Any:
        """Return the result of the function `question` in that process; arguments: of JSON."""
        try:
            print(json.dumps([question, *arguments]), file=self._process.stdin, flush=True)
            answer, failure = json.loads(self._process.stdout.readline())
        except (BrokenPipeError, ValueError):
            code = self._process.wait()
            raise CheckoutError(f"{self.folder}: the process ended with exit code {code}") from None
        if failure:
            raise CheckoutError(f"{self.folder}: {failure}")
        return answer


def in_turns(
    checkouts: Sequence[Checkout], rounds: int, question: str, *arguments: Any
) -> list[list[Any]]:
    """Return each checkout's answers, one a round; every other round goes backwards."""
    answers: list[list[Any]] = [[] for _ in checkouts]
    pairs = list(zip(checkouts, answers, strict=True))
    for number in range(rounds):
        for checkout, result in pairs[:: -1 if number % 2 else 1]:
            result.append(checkout.ask(question, *arguments))
    return answers


def ratios(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """Return median, 20th and 80th percentile of after / before over the rounds."""
    results = [new / old for old, new in zip(before, after, strict=True)]
    deciles = statistics.quantiles(results, n=10, method="inclusive")
    return statistics.median(results), deciles[1], deciles[7]


def run(action: Callable[[], Any]) -> float:
    """Return the processor's microseconds of a call, in one run of many calls."""
    timer, calls = _timer(action)
    return timer.timeit(calls) / calls * 1e6


@functools.cache
def _timer(action: Callable[[], Any]) -> tuple[timeit.Timer, int]:
    """Warm a call up; return (its timer, number of calls that make a run)."""
    timer = timeit.Timer(action, timer=time.thread_time)
    timer.timeit(20)  # plans, and fills caches
    return timer, max(5, int(SECONDS / timer.timeit(10) * 10))


def serve(*functions: Callable[..., Any]) -> None:
    """Answer questions of stdin, lines of JSON [function's name, *arguments], until its end.

    A reply is [result, traceback or None]. The package is that of the checkout in sys.argv[2].
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks ends this one
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the checkout prints is no reply
    folder = Path(sys.argv[2])
    sys.path[:0] = [str(folder / name) for name in ("", "scripts", "tests")]
    known = {function.__name__: function for function in functions}
    for line in sys.stdin:
        question, *arguments = json.loads(line)
        try:
            reply = [known[question](*arguments), None]
            check_home(folder)
        except Exception:  # told to the process that asks
            reply = [None, traceback.format_exc()]
        print(json.dumps(reply), file=replies)


def check_home(folder: Path) -> None:
    """Raise CheckoutError if the package was imported from another folder than the checkout."""
    package = sys.modules.get(PACKAGE)
    if package and Path(package.__file__ or "").parent.parent != folder:
        raise CheckoutError(f"{PACKAGE} is found in {package.__file__}")
