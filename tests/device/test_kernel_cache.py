# SPDX-License-Identifier: MIT
"""CuPy's kernel cache that cannot be made or written: a refusal with its remedy, on every way."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cupy_training_ops import ProviderError
from cupy_training_ops.device import compiler

ROOT = Path(__file__).parents[2]
REMEDY = "export CUPY_CACHE_DIR=$(mktemp -d)"
UNUSABLE = {
    "below a file": {"CUPY_CACHE_DIR": "/dev/null/x"},
    "empty": {"CUPY_CACHE_DIR": ""},
    "home below a file": {"HOME": "/dev/null/x"},
}
unusable = pytest.mark.parametrize("environment", UNUSABLE)


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A new Python, for CuPy looks for its cache when it is imported."""
    inherited = {name: value for name, value in os.environ.items() if name != "CUPY_CACHE_DIR"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(autouse=True)
def _cupy() -> None:
    pytest.importorskip("cupy", reason="CuPy is in the extras")


# One process for each environment makes all calls: what is refused leaves nothing behind.
CALLS = """
import contextlib, io, json, sys
import cupy_training_ops as cto
from cupy_training_ops import cli
from cupy_training_ops.call.backends import cuda_backend

class OnDevice:
    __cuda_array_interface__ = {}

def refused(way):
    try:
        way()
    except cto.ProviderError as error:
        return str(error)

def run(arguments):
    streams = [io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        try:
            cli.main(arguments)
        except SystemExit as end:
            status = end.code
    return [status, *(stream.buffer.getvalue().decode() for stream in streams)]

ways = (cuda_backend, lambda: cto.relu_grad(OnDevice(), OnDevice()))
commands = {" ".join(arguments): run(arguments) for arguments in json.loads(sys.argv[1])}
print(json.dumps([list(map(refused, ways)), commands]))
"""
NEEDS_CUPY = [
    ("verify", "--op", "ReluGrad"),
    ("compile", "--op", "ReluGrad"),
    ("compile", "--op", "ReluGrad", "--arch", "90"),
    ("compile", "--op", "ReluGrad", "--arch", "all", "--jobs", "2"),
    ("roundtrip", "--provider", "cuda"),
]
AUTO = ("roundtrip", "--shape", "9", "--codec", "pack1", "--json")
COMMANDS = [("doctor",), AUTO, *NEEDS_CUPY]


@functools.cache
def calls(environment: str) -> tuple[list[str], dict[str, list[Any]]]:
    """What the two ways to the backend are refused with; status, stdout and stderr of commands."""
    result = python("-c", CALLS, json.dumps(COMMANDS), **UNUSABLE[environment])
    assert (result.returncode, result.stderr) == (0, "")
    refusals, commands = json.loads(result.stdout)
    return refusals, commands


@unusable
def test_the_cuda_backend_is_refused_with_the_remedy(environment) -> None:
    refusals, _ = calls(environment)
    assert [REMEDY in text for text in refusals] == [True, True]


def test_a_folder_that_is_mended_later_is_taken(tmp_path) -> None:
    """A failed import of CuPy's would leave it half imported until the process ends."""
    code = """
import os, sys
from cupy_training_ops import ProviderError
from cupy_training_ops.call.backends import cuda_backend
try:
    cuda_backend()
except ProviderError:
    os.environ["CUPY_CACHE_DIR"] = sys.argv[1]
    print(cuda_backend().name)
"""
    result = python("-c", code, str(tmp_path / "new" / "cache"), CUPY_CACHE_DIR="/dev/null/x")
    assert (result.stdout, result.stderr) == ("cuda\n", "")


@unusable
def test_doctor_shows_the_row_and_its_remedy(environment) -> None:
    status, out, err = calls(environment)[1]["doctor"]
    assert (status, err) == (1, "")
    lines = out.splitlines()
    assert any(line.split()[:2] == ["cache", "missing"] for line in lines)
    (mend,) = (line for line in lines if REMEDY in line and line.startswith("to mend"))
    for part in ("CuPy", "NVRTC", "cache"):
        assert part in mend
    assert "pip install 'cupy-training-ops" not in out


@unusable
def test_auto_takes_the_cpu(environment) -> None:
    status, out, err = calls(environment)[1][" ".join(AUTO)]
    assert (status, err) == (0, "")
    assert json.loads(out.splitlines()[1])["provider"] == "cpu"


@unusable
@pytest.mark.parametrize("arguments", NEEDS_CUPY, ids=" ".join)
def test_what_needs_cupy_ends_with_the_remedy(arguments, environment) -> None:
    status, out, err = calls(environment)[1][" ".join(arguments)]
    assert (status, out) == (3, "")
    assert_remedy(err)


def test_a_command_of_its_own_ends_with_the_remedy() -> None:
    result = python("-m", "cupy_training_ops", *NEEDS_CUPY[1], **UNUSABLE["below a file"])
    assert (result.returncode, result.stdout) == (3, "")
    assert_remedy(result.stderr)


def assert_remedy(err: str) -> None:
    """One line that says what mends it."""
    (line,) = err.splitlines()
    assert line.startswith("Error: ")
    assert REMEDY in line
    assert "pip install" not in line


def test_a_folder_that_takes_no_file_is_a_provider_error(monkeypatch, tmp_path) -> None:
    """A kernel that was compiled and cannot be kept ends the call, as CuPy has it."""
    from cupy_training_ops.device import cuda

    class Unwritable:
        def __init__(self, **_: object) -> None:
            pass

        def compile(self) -> None:
            raise PermissionError(13, "Permission denied", str(tmp_path / "x"))

    source = type("Source", (), {"name": "some", "code": ""})()
    monkeypatch.setattr(cuda.cupy, "RawModule", Unwritable)
    with pytest.raises(ProviderError, match=r"Permission denied.*CUPY_CACHE_DIR"):
        cuda.BACKEND.load(source, ())


def test_a_home_that_is_not_known_is_as_cupy_takes_it(monkeypatch) -> None:
    """Path.home() raises where neither HOME nor the user's entry says one."""
    monkeypatch.delenv("CUPY_CACHE_DIR", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert compiler.cache_folder() == "~/.cupy/kernel_cache"


def test_permissions_are_tried_and_not_read(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "new"))
    compiler.require_writable_cache()
    assert list((tmp_path / "new").iterdir()) == []

    def read_only(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(compiler.tempfile, "TemporaryFile", read_only)
    with pytest.raises(ProviderError, match="Read-only file system"):
        compiler.require_writable_cache()
