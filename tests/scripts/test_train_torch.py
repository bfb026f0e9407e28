# SPDX-License-Identifier: MIT
"""The script that measures compressed activations in PyTorch, on the CPU and at small sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
METHODS = ["--method", "plain", "--method", "default"]


def run(script: str, out: Path, *arguments: str) -> None:
    command = [sys.executable, str(SCRIPTS / script), "--quick", *arguments, "--out", str(out)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, capture_output=True, env=alone)


def test_codes_train_alike(tmp_path: Path) -> None:
    run("train_torch.py", tmp_path, "--model", "resnet-float32", *METHODS)
    found = json.loads((tmp_path / "train_torch.json").read_text())
    plain, default = found["rows"]
    assert plain["losses"] == pytest.approx(default["losses"], rel=1e-2)
    assert default["report"]["before"] == 4 * default["report"]["after"]
    assert found["host_time"]["pack_and_unpack_us"] > 0
    assert "x) |" in (tmp_path / "train_torch.md").read_text()


def test_losses_of_several_seeds(tmp_path: Path) -> None:
    run("train_losses.py", tmp_path, "--model", "transformer", "--steps", "2", "--seeds", "2")
    found = json.loads((tmp_path / "train_losses.json").read_text())["losses"]["transformer"]
    assert found.keys() == {"plain", "default", "wide"}
    plain, default = found["plain"], found["default"]
    assert [len(each) for each in plain] == [2, 2]
    assert abs(plain[0][-1] - plain[1][-1]) > 1e-3  # seeds differ
    assert default != plain
    for ours, theirs in zip(default, plain, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-2)
    assert "| default | " in (tmp_path / "train_losses.md").read_text()
