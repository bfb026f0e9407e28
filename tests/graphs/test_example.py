# SPDX-License-Identifier: MIT
"""The example, as its users run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.thorough
def test_the_example_learns_digits(tmp_path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is in the extra `examples`")
    script = ROOT / "examples" / "onnx_training.py"
    command = [sys.executable, str(script), "--epochs", "2"]
    actual = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = dict(line.split(": ", 1) for line in actual.stdout.splitlines())
    assert list(lines) == [
        *("before", "60 steps", "after", "another epoch of what was saved", "exported")
    ]
    assert float(lines["before"].split()[-1]) < 0.3
    assert float(lines["after"].split()[-1]) > 0.8
    assert float(lines["exported"].split()[-1]) > 0.8
    assert lines["another epoch of what was saved"] == "the same losses: True"
    assert not any(tmp_path.iterdir())
