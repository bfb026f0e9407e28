# SPDX-License-Identifier: MIT
"""Two processes that run tests/torch_ranks.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "torch_ranks.py"
SECONDS = 120.0


def largest_difference(folder: Path, device: str, script: Path = SCRIPT) -> float:
    """Between sharded parameters and whole ones, as both ranks have it."""
    command = [sys.executable, str(script)]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(folder / "store"), device],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=SECONDS)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert all(process.returncode == 0 for process in started), "\n".join(said)
    return max(float(text.split()[-1]) for text in said)
