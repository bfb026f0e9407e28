# SPDX-License-Identifier: MIT
"""The script that says where the host's time goes in a backward pass, on the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "backward_gaps.py"


@pytest.mark.thorough
def test_gaps_of_a_small_model_are_its_backward_pass() -> None:
    command = [sys.executable, str(SCRIPT), "--tiny", "--steps", "2", "--method", "ours"]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    title, _, *lines = found.stdout.splitlines()
    whole = float(title.rpartition(": ")[2].partition(" ms")[0])
    rows = {row[0]: row[1:] for line in lines[2:-1] for row in [line.strip("| ").split(" | ")]}
    assert "layer_normBackward" in rows
    totals = [float(total) for _, total, _ in rows.values()]
    assert totals == sorted(totals, reverse=True)
    assert 0.5 * whole < sum(totals) < 1.01 * whole
    assert all(float(most) <= float(total) for _, total, most in rows.values())
