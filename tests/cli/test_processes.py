# SPDX-License-Identifier: MIT
"""Work in several processes: every item has its outcome, whatever becomes of its process."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from cupy_training_ops.cli.processes import CONTEXT, workers

# A worker finds its function by name: these are Python's own.
WRONG = {"bad": "it is bad"}.get  # what went wrong, or None


@pytest.fixture(scope="module")
def two():
    """Two workers, for tests that leave them as they are."""
    with workers(2) as attempts:
        yield attempts


@pytest.fixture
def one():
    with workers(1) as attempts:
        yield attempts


@pytest.mark.parametrize("count", ["one", "two"])
def test_every_item_has_its_outcome(request, count) -> None:
    attempts = request.getfixturevalue(count)
    items = ["good", "bad", "better", "bad", "best"]
    for _ in range(2):
        actual = sorted(attempts(WRONG, items), key=lambda outcome: items.index(outcome[0]))
        assert sorted(actual) == sorted((item, WRONG(item)) for item in items)


def test_items_are_begun_in_order(two) -> None:
    delays = [1.0, 0.0, 0.0, 0.0]
    assert [item for item, _ in two(time.sleep, delays)] == [0.0, 0.0, 0.0, 1.0]


def test_an_exception_is_reported(two) -> None:
    outcomes = dict(two(math.sqrt, [-1]))
    assert outcomes[-1].startswith("Traceback")
    assert "ValueError" in outcomes[-1]


def test_in_one_process_an_exception_is_raised(one) -> None:
    with pytest.raises(ValueError, match=r"math domain|nonnegative"):
        list(one(math.sqrt, [-1]))


def test_the_item_that_ended_its_process_is_named_and_the_others_are_done() -> None:
    with workers(2) as attempts:
        outcomes = dict(attempts(os._exit, [3, 4, 5]))
        assert outcomes == {
            n: f"the process that had it ended with exit code {n}" for n in (3, 4, 5)
        }
        assert dict(attempts(WRONG, ["good", "bad"])) == {"good": None, "bad": "it is bad"}


def children() -> set[str]:
    """The processes that this one started and that are not waited for, zombies too."""
    path = f"/proc/self/task/{os.getpid()}/children"
    with open(path) as file:
        return set(file.read().split())


def test_no_process_is_left(two) -> None:
    """However the context is left; what multiprocessing itself keeps is there before."""
    list(two(WRONG, ["good"]))
    before = children()
    with contextlib.suppress(KeyboardInterrupt), workers(2) as attempts:
        next(attempts(time.sleep, [0.0, 60.0, 60.0]))
        assert len(children() - before) == 2
        raise KeyboardInterrupt
    assert children() == before


def test_interrupts_are_handled_as_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    with workers(2) as attempts:
        list(attempts(WRONG, ["good"]))
        assert signal.getsignal(signal.SIGINT) is before


STATUSES = """
from pathlib import Path
from cupy_training_ops.cli.processes import workers
with workers(2) as attempts:
    for _, status in attempts(Path.read_text, [Path("/proc/self/status")] * 2):
        print(status)
"""


def test_no_process_is_interrupted() -> None:
    """Also not the first, ahead of which multiprocessing starts one of its own."""
    ran = subprocess.run([sys.executable, "-c", STATUSES], capture_output=True, text=True)
    blocked = [int(mask, 16) for mask in re.findall(r"^SigBlk:\s*(\w+)$", ran.stdout, re.M)]
    assert len(blocked) == 2, ran.stderr
    assert all(mask >> (signal.SIGINT - 1) & 1 for mask in blocked)


def test_an_interrupt_while_a_process_is_started_is_not_lost(monkeypatch) -> None:
    before, start = children(), CONTEXT.Process.start

    def interrupted(process) -> None:
        signal.raise_signal(signal.SIGINT)
        start(process)

    monkeypatch.setattr(CONTEXT.Process, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), workers(2) as attempts:
        list(attempts(WRONG, ["good", "bad"]))
    assert len(children() - before) <= 1  # multiprocessing's own
