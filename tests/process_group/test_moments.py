# SPDX-License-Identifier: MIT
"""Whatever happens at whatever moment: the right result or one GroupError, for all, in time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from process_group.moments import KINDS, OF_STORES

SCRIPT = Path(__file__).parent / "moments.py"
TIMEOUT = 1.0
GRACE = 2.0
BUSY = 2.0  # seconds that a machine with other work may take more
# Of the rank that it happens to, beside the usual; gloo itself aborts without its descriptors.
OWN_ENDS = {"kill": {"status -9"}, "memory": {"own"}, "descriptors": {"status -6"}}


def check(engine: str, kinds: Sequence[str], n: int, seed: int) -> None:
    """So many trials of each kind."""
    command = [sys.executable, str(SCRIPT), engine, ",".join(kinds), str(n), str(seed)]
    ran = subprocess.run(
        [*command, str(TIMEOUT)],
        capture_output=True,
        text=True,
        timeout=200,
        start_new_session=True,
    )
    assert ran.returncode == 0, ran.stderr
    actual = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(actual) == n * len(kinds)
    for trial in actual:
        check_trial(trial, ran.stderr)


def check_trial(trial: dict, said: str) -> None:
    for rank, (end, seconds) in enumerate(trial["ends"]):
        own = OWN_ENDS.get(trial["kind"], set()) if rank == trial["victim"] else set()
        assert end in {"right", "group"} | own, f"{trial}\n{said}"
        assert seconds < TIMEOUT + GRACE + BUSY, trial
    if trial["kind"] == OF_STORES:
        assert {end for end, _ in trial["ends"]} == {"group"}, trial
    if trial["kind"] in ("kill", "stop", "descriptors"):
        assert "group" in {end for end, _ in trial["ends"]}, trial


def test_a_fault_at_a_random_moment(seed) -> None:
    check("embedded", KINDS, 2, seed)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_faults_at_many_random_moments(kind, seed) -> None:
    check("embedded", [kind], 10 if kind == "stop" else 40, seed)


def test_a_fault_at_a_random_moment_over_gloo(seed) -> None:
    pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    check("torch", [*KINDS, OF_STORES], 1, seed)


@pytest.mark.thorough
def test_faults_at_many_random_moments_over_gloo(seed) -> None:
    pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    check("torch", [*KINDS, OF_STORES], 6, seed)
