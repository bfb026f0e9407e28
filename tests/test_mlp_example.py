# SPDX-License-Identifier: MIT
"""examples/numpy_mlp.py, as its users run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def printed(codec: str) -> tuple[float, float, float]:
    """Loss, accuracy in percent, and how many times fewer bytes are saved."""
    script = ROOT / "examples" / "numpy_mlp.py"
    command = [sys.executable, str(script), "--codec", codec, "--epochs", "8"]
    one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment = {**os.environ, **one}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    loss, share, after, before = re.findall(r"\d[\d.]*", result.stdout)
    return float(loss), float(share), int(before) / int(after)


@pytest.mark.thorough
def test_a_network_with_compressed_activations_learns_as_well() -> None:
    pytest.importorskip("sklearn", reason="the extra examples brings it")
    loss, share, smaller = printed("none")
    assert (loss < 0.03, share > 90, smaller) == (True, True, 1)
    loss, share, smaller = printed("msfp15")
    assert (loss < 0.03, share > 90, smaller > 6.5) == (True, True, True)
