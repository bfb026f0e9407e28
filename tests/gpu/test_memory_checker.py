# SPDX-License-Identifier: MIT
"""compute-sanitizer over every sample; first it has to report a planted overrun of one element."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "memory_check.py"
FOUND = 9


def checked(tool: str, *options: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("compute-sanitizer") is None:
        pytest.skip("compute-sanitizer is not installed")
    checker = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND)]
    if tool == "memcheck":
        checker += ["--padding", "64"]  # or the next allocation may begin where an array ends
    command = [*checker, sys.executable, str(SCRIPT), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)


def test_a_planted_overrun_is_reported() -> None:
    result = checked("memcheck", "--plant")
    assert result.returncode == FOUND, result.stdout + result.stderr
    assert "Invalid __global__ read of size 4 bytes" in result.stdout
    assert "probe_overrun" in result.stdout


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_no_finding_over_every_sample(tool: str) -> None:
    result = checked(tool)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    assert " calls" in result.stdout
