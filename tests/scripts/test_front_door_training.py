# SPDX-License-Identifier: MIT
"""The script that measures trainings through the front door, on the CPU and at small sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "front_door_training.py"
METHODS = ("plain", "checkpointing", "ours", "ours-compressed", "small", "compiled")
pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """Rows of a GPT by method."""
    out = tmp_path_factory.mktemp("trained")
    command = [sys.executable, str(SCRIPT), "--tiny", "--steps", "4", "--seeds", "2"]
    command += ["--model", "gpt", "--out", str(out)]
    for method in METHODS:
        command += ["--method", method]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, capture_output=True, env=alone)
    assert "off plain" in (out / "front_door_training.md").read_text()
    rows = json.loads((out / "front_door_training.json").read_text())["rows"]
    return {row["method"]: row for row in rows}


def test_every_method_is_measured(found: dict[str, dict[str, object]]) -> None:
    assert found.keys() == set(METHODS)
    assert not [row for row in found.values() if "error" in row]
    assert all(row["step_ms"] > 0 for row in found.values())
    assert "5 LayerNorm" in found["ours"]["said"]
    assert (found["plain"]["blocks"], found["checkpointing"]["blocks"]) == (0, 2)


@pytest.mark.parametrize("method", ["ours-compressed", "small"])
def test_seeds_train_alike(found: dict[str, dict[str, object]], method: str) -> None:
    plain, ours = found["plain"]["losses"], found[method]["losses"]
    assert [len(each) for each in plain] == [len(each) for each in ours] == [4, 4]
    assert plain[0] != plain[1]
    for a, b in zip(ours, plain, strict=True):
        assert a == pytest.approx(b, rel=2e-2)  # masks of dropout are others


def test_a_row_over_its_time_says_so(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--tiny", "--model", "gpt", "--method", "plain"]
    command += ["--whole", "0", "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    (row,) = json.loads((tmp_path / "front_door_training.json").read_text())["rows"]
    assert row["error"] == "TimeoutError: not begun: no time is left"
