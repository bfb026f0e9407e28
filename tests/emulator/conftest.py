# SPDX-License-Identifier: MIT
"""Loads test kernels; without a compiler the emulator's tests skip, in CI they fail."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from emulator import EmulatedModule, require_emulator

KERNELS = Path(__file__).parent / "kernels"
TESTS = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def load_kernels() -> Callable[..., EmulatedModule]:
    """A function of a file's name in kernels/, options and name expressions: the module."""
    require_emulator()

    @functools.cache
    def load(
        name: str, options: tuple[str, ...] = (), name_expressions: tuple[str, ...] = ()
    ) -> EmulatedModule:
        code = f'#line 1 "kernels/{name}"\n' + (KERNELS / name).read_text()
        return EmulatedModule(code, options, name_expressions)

    return load


@pytest.fixture(scope="session")
def marked_line() -> Callable[[str, str], str]:
    """A function of a file and a mark: the place, as messages give it, of `// line: mark`."""

    def find(name: str, mark: str) -> str:
        lines = (KERNELS / name).read_text().splitlines()
        (number,) = (n for n, text in enumerate(lines, 1) if text.endswith(f"// line: {mark}"))
        return f"kernels/{name}:{number}"

    return find


@pytest.fixture(scope="session")
def run_python() -> Callable[..., str]:
    """A function of a program, its arguments and its environment: what it prints."""
    require_emulator()

    def run(program: str, *arguments: str, **environment: str) -> str:
        result = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=TESTS,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run
