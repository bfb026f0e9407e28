# SPDX-License-Identifier: MIT
"""Whatever happens at whatever moment: the right result or one GroupError, for all, in time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from process_group.moments import KINDS
from ranks import ROOT

SCRIPT = Path(__file__).parent / "moments.py"
TIMEOUT = 1.0
GRACE = 2.0
BUSY = 2.0  # seconds that a machine with other work may take more
OWN_ENDS = {"kill": {"status -9"}}  # of the rank that it happens to, beside the usual


def trials(engine: str, kind: str, n: int, seed: int) -> list[dict]:
    command = [sys.executable, str(SCRIPT), engine, kind, str(n), str(seed), str(TIMEOUT)]
    ran = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        start_new_session=True,
    )
    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(found) == n
    return found


def check(found: list[dict], kind: str) -> None:
    for trial in found:
        for rank, (end, seconds) in enumerate(trial["ends"]):
            own = OWN_ENDS.get(kind, set()) if rank == trial["victim"] else set()
            assert end in {"right", "group"} | own, trial
            assert seconds < TIMEOUT + GRACE + BUSY, trial
        if kind in ("kill", "stop", "descriptors"):
            assert "group" in {end for end, _ in trial["ends"]}, trial


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_a_random_moment(kind, seed) -> None:
    check(trials("embedded", kind, 2, seed), kind)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_faults_at_many_random_moments(kind, seed) -> None:
    check(trials("embedded", kind, 10 if kind == "stop" else 40, seed), kind)
