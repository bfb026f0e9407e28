# SPDX-License-Identifier: MIT
"""What a session of tests does by itself: it ends tests that hang."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Waits where Python's signal handlers do not run, as an emulated kernel may.
HANGING = """
import ctypes

def test_hangs():
    ctypes.CDLL(None).sleep(100)
"""


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A session of the folder's tests under this checkout's configuration."""
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), str(folder)]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


def test_a_hang_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING)
    result = run_pytest(tmp_path, "--timeout=1")
    assert result.returncode == 1
    assert "test_hangs" in result.stdout
    assert "Timeout" in result.stdout


def test_every_test_has_a_time_limit(pytestconfig: pytest.Config) -> None:
    assert 0 < float(pytestconfig.getini("timeout")) <= 300
    assert pytestconfig.getini("timeout_method") == "thread"
