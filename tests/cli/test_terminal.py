# SPDX-License-Identifier: MIT
"""The same words on a terminal of 80 columns, with NO_COLOR, and in a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cupy_training_ops import compress
from cupy_training_ops.cli import main

ROOT = Path(__file__).parents[2]
pytest.importorskip("pty", reason="terminals of POSIX")
# The command, its status, and words of what it says.
COMMANDS = [
    (["--version"], 0, "cupy-training-ops 0."),
    (["-h"], 0, 'eval "$(cupy-training-ops completion bash)"'),
    *(([name, "-h"], 0, f"Usage: cupy-training-ops {name}") for name in main.commands),
    (["ops"], 0, "LambOptimizer"),
    (["ops", "gist_pack1_encoder"], 0, "GistPack1Encoder  com.microsoft"),
    (["ops", "gist_pack1_encodr"], 2, "did you mean GistPack1Encoder"),
    (["rountrip"], 2, "Did you mean 'roundtrip'"),
    (["info", "x.npy", "packed"], 0, "codec    msfp15"),
    (["encode", "x.npy", "packed", "--codec", "pack8"], 2, "--force replaces it"),
    (["encode", "x.npy", "packed", "--codec", "pak8"], 2, "did you mean pack8"),
    (["encode", "x.npy", "packed", "--codec", "lossless"], 2, "there are: binarize"),
    (["roundtrip", "x.npy", "--provider", "cpu", "--min-snr", "30"], 1, "MISSED"),
    (["encode", "x.npy", "packed", "--codec", "pack8", "--force"], 0, "ratio 4.0"),
]


@pytest.fixture
def folder(tmp_path, rng) -> Path:
    np.save(tmp_path / "x.npy", rng.standard_normal((32, 8)).astype(np.float32))
    compress(np.ones(9, np.float32), "msfp15").save(tmp_path / "packed")
    return tmp_path


def without_times(text: str) -> list[str]:
    """The words; of a row of roundtrip, those that no clock says."""
    lines = text.splitlines()
    rows = [line[:40] if line.endswith(("ok", "MISSED")) else line for line in lines]
    return " ".join(rows).split()


def test_a_terminal_a_pipe_and_no_color_get_the_same_words(folder) -> None:
    decided = {"NO_COLOR", "COLUMNS", "LINES"}  # here and by the terminal's own size
    environment = {name: value for name, value in os.environ.items() if name not in decided}
    result = subprocess.run(
        [sys.executable, ROOT / "tests" / "cli" / "terminal.py"],
        input=json.dumps([command for command, _, _ in COMMANDS]),
        cwd=folder,
        env={**environment, "TERM": "xterm-256color"},
        capture_output=True,
        text=True,
        check=True,
    )
    for (command, status, words), shown in zip(COMMANDS, json.loads(result.stdout), strict=True):
        for place, (text, ended) in zip(("terminal", "pipe", "no color"), shown, strict=True):
            assert ended == status, (command, text)
            assert words in text, command
            assert all(line.isprintable() for line in text.splitlines()), command
            if command[0] != "ops" or place != "pipe":  # there its lines are for other programs
                most = 200 if status == 2 else 80  # an error is one line, for all its hints
                assert max(map(len, text.splitlines())) <= most, command
            assert without_times(text) == without_times(shown[0][0]), command
