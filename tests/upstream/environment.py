# SPDX-License-Identifier: MIT
"""A virtual environment with onnxruntime-training-cpu, made once and kept in a folder."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PINS = (
    "onnxruntime-training-cpu==1.19.2",
    "onnx==1.16.2",
    "numpy==1.26.4",
    "protobuf==4.25.8",
)
PYTHONS = ("3.11", "3.10", "3.9")  # those that all of PINS have wheels for
SECONDS = 300.0  # for the installation; about 15 with a warm connection

_SUITABLE = f"import ensurepip, sys; sys.exit('%d.%d' % sys.version_info[:2] not in {PYTHONS})"


class UnavailableError(Exception):
    """There is no onnxruntime-training-cpu here, and why."""


def upstream_python(folder: Path) -> Path:
    """The environment's Python, installed into the folder unless it is there.

    Of several processes one installs and the others wait.
    """
    python, pins = folder / "venv" / "bin" / "python", folder / "pins"
    with _locked(folder / "lock"):
        if not (python.exists() and pins.exists() and pins.read_text() == "\n".join(PINS)):
            pins.unlink(missing_ok=True)
            _install(folder / "venv", python)
            pins.write_text("\n".join(PINS))  # last: an installation cut short is made afresh
    return python


def _install(venv: Path, python: Path) -> None:
    pip = [str(python), "-I", "-m", "pip", "--disable-pip-version-check", "--retries=1"]
    _run([_suitable_python(), "-I", "-m", "venv", "--clear", str(venv)])
    _run([*pip, "--timeout=15", "install", "--quiet", "--only-binary=:all:", *PINS])
    _run([str(python), "-I", "-c", "import onnx, onnxruntime"])


def _suitable_python() -> str:
    """A Python that the packages are made for, this one if it is."""
    actual = (sys.executable, *(shutil.which(f"python{version}") for version in PYTHONS))
    for python in filter(None, actual):
        if subprocess.run([python, "-I", "-c", _SUITABLE], capture_output=True).returncode == 0:
            return python
    raise UnavailableError(f"{PINS[0]} needs Python {' or '.join(PYTHONS)} with ensurepip")


def _run(command: list[str]) -> None:
    """Run a command; UnavailableError with its last line if it fails."""
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS)
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout).splitlines() or [str(error)]
        raise UnavailableError(f"{PINS[0]} cannot be installed: {lines[-1]}") from error
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{PINS[0]} cannot be installed: {error}") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone among the processes that lock this file; released also when a process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
