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
