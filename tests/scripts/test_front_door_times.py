# SPDX-License-Identifier: MIT
"""What the script of the front door's times does with a way that fails: the others are measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
pytestmark = pytest.mark.thorough
FAKE = f"""
import os, sys, time
sys.path.insert(0, {str(SCRIPTS)!r})
import front_door_times as script

def fails():
    raise RuntimeError("a|b")

WAYS = {{"whole": lambda: None, "dies": lambda: os._exit(3), "fails": fails,
         "hangs": lambda: time.sleep(60)}}

def large():
    def make(kind):
        return lambda: {{"ours": (WAYS["whole"], []), "PyTorch": (WAYS[kind], []),
                         "Liger": (WAYS["whole"], [])}}
    return {{kind: make(kind) for kind in WAYS}}

def figures(function, leaves, repeats):
    try:
        function()
    except Exception as error:
        return [script._words(error), "", "", ""]
    return [1.0, 2.0, 3.0, 4.0]

script.large, script.figures = large, figures
script.torch.cuda.empty_cache = lambda: None
if __name__ == "__main__":
    script.print_large(list(WAYS), 1, 20.0)
"""


def test_whatever_fails_is_said_and_the_rest_is_measured(tmp_path: Path) -> None:
    fake = tmp_path / "fake.py"
    fake.write_text(FAKE)
    actual = subprocess.run([sys.executable, str(fake)], capture_output=True, text=True, check=True)
    rows = [line.split(" | ") for line in actual.stdout.splitlines()[3:]]
    assert [row[0].removeprefix("| ") for row in rows] == [
        kind for kind in ("whole", "dies", "fails", "hangs") for _ in range(4)
    ]
    assert [row[1] for row in rows] == ["ours", "PyTorch", "Liger", "our best over the others'"] * 4
    assert [row[2] for row in rows[1::4]] == [
        "1.000",
        "the process ended",
        "RuntimeError: a/b",
        "longer than 20 s",
    ]
    measured = [row for i, row in enumerate(rows) if i % 4 in (0, 2)]
    assert all(row[2:] == ["1.000", "2.000", "3.000", "4.000 |"] for row in measured)
