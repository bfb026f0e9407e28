# SPDX-License-Identifier: MIT
"""Several sessions of pytest in one new Python: most of a short one's time are its imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

_RUNS = """
import contextlib, io, json, os, sys
import pytest

found = []
for arguments, environment in json.loads(sys.argv[1]):
    os.environ.update(environment)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status = pytest.main(arguments)
    found.append((status, out.getvalue()))
print(json.dumps(found))
"""


class Ran(NamedTuple):
    """A session that has ended."""

    returncode: int
    stdout: str

    @property
    def tests(self) -> list[str]:
        """Those that `--collect-only -q` lists."""
        return [line for line in self.stdout.splitlines() if "::" in line]


def pytest_runs(
    *questions: tuple[list[str], dict[str, str]], before: str = "", **environment: str
) -> list[Ran]:
    """One after the other, of arguments and of what each changes in the environment."""
    command = [sys.executable, "-c", before + _RUNS, json.dumps(questions)]
    environment = os.environ | environment
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return [Ran(*result) for result in json.loads(ran.stdout)]
