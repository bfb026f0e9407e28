# SPDX-License-Identifier: MIT
"""The script that compares moments of 8 bits with float32 ones, over a few steps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "coded_states.py"


@pytest.mark.thorough
def test_directions_are_near() -> None:
    command = [sys.executable, str(SCRIPT), "--steps", "14", "--seeds", "1"]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, check=True, capture_output=True, text=True, env=alone)
    rows = [line.strip("| ").split(" | ") for line in found.stdout.splitlines()[-3:]]
    plain, coded, table = ([float(cell) for cell in row[1:]] for row in rows)
    assert [row[0] for row in rows] == ["float32", "8bit", "table"]
    assert plain[2] < 1e-3 < 0.02 < coded[2] < 0.1
    assert 0.02 < table[2] < 0.2
    assert coded[0] == pytest.approx(plain[0], rel=1e-3)
