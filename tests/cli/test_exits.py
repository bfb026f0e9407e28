# SPDX-License-Identifier: MIT
"""How a command ends: one line and a status for everything that is no bug, whatever the streams."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from cupy_training_ops import cli
from cupy_training_ops.cli import main
from cupy_training_ops.cli.errors import Failure, Group
from cupy_training_ops.errors import ArgumentError, CompileError, DtypeError, ProviderError

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "cupy_training_ops"]
RELU = ["roundtrip", "--provider", "cpu", "--shape", "9", "--codec", "pack1"]
NAUGHTY = "a\x1b[2J\nb\udcff\u202ec"  # clears the screen, ends the line, is no text, turns it round
SHOWN = r"a\x1b[2J\nb\udcff\u202ec"

ENDINGS = [
    (click.UsageError("two\nlines"), 2, "Error: two lines\n"),
    (Failure("bad\ninput"), 2, "Error: bad\\ninput\n"),
    (ArgumentError("x"), 2, "Error: x\n"),
    (DtypeError("x"), 2, "Error: x\n"),
    (CompileError("some.cu:\n\x1bone\ntwo"), 1, "Error: some.cu:\n\\x1bone\ntwo\n"),
    (ProviderError("none"), 3, "Error: none\n"),
    (MemoryError(), 2, "Error: not enough memory\n"),
    (MemoryError("9 GiB"), 2, "Error: not enough memory: 9 GiB\n"),
    (FileNotFoundError(2, "No such file", "x"), 2, "Error: x: No such file\n"),
    (OSError("odd"), 2, "Error: odd\n"),
    (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, ""),
    (KeyboardInterrupt(), 130, "\nAborted!\n"),
    (click.exceptions.Exit(1), 1, ""),
]


@pytest.mark.parametrize("place", ["callback", "option"])
@pytest.mark.parametrize(("error", "status", "words"), ENDINGS, ids=lambda value: repr(value))
def test_every_ending_has_its_status_and_its_words(place, error, status, words):
    def fails(*_, **__):
        raise error

    option = click.Option(["--x"], callback=fails if place == "option" else None, default="")
    command = click.Command(
        "some", callback=fails if place == "callback" else None, params=[option]
    )
    result = CliRunner().invoke(Group("all", commands=[command]), ["some"])
    assert isinstance(result.exception, SystemExit), result.exc_info
    assert (result.exit_code, result.stdout, result.stderr) == (status, "", words)


def test_a_bug_is_a_traceback():
    def fails():
        raise KeyError("bug")

    group = Group("all", commands=[click.Command("some", callback=fails)])
    assert isinstance(CliRunner().invoke(group, ["some"]).exception, KeyError)


def test_no_command_decides_how_it_ends():
    """A command says that its check failed; every other status comes from the one place."""
    for path in Path(cli.__file__).parent.glob("*.py"):
        if path.stem != "errors":
            text = path.read_text()
            assert set(re.findall(r"Exit\((.*)\)", text)) <= {"CHECK_FAILED"}
            assert not re.search(
                "exit_code|sys.exit|SystemExit|[(]KeyboardInterrupt|MemoryError", text
            )


def test_the_readme_lists_the_statuses():
    text = " ".join((ROOT / "docs" / "cli.md").read_text().split())
    for status in (0, 1, 2, 3, 130, 141):
        assert re.search(rf"Exit codes:[^.]*\b{status} ", text), status
        assert re.search(rf"\b{status} ", main.help.split("Exit codes:")[1]), status


# ---- streams that fail ---------------------------------------------------------------------------

FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = line.replace("CTO", " ".join(COMMAND))
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@FULL
@pytest.mark.parametrize(
    "arguments",
    ["ops", "--help", "roundtrip --provider cpu --shape 9 --json"]
    + [pytest.param(a, marks=pytest.mark.thorough) for a in ("", "doctor", "encode --help")],
)
def test_a_full_stdout_is_one_line_and_status_2(arguments):
    result = shell(f"CTO {arguments} > /dev/full")
    assert result.returncode == 2
    assert result.stderr == "Error: No space left on device\n"


@FULL
@pytest.mark.parametrize("redirection", ["> /dev/full 2>&1", "2> /dev/full", "2> /dev/full >&2"])
def test_a_full_stderr_changes_no_status(redirection):
    assert shell(f"CTO ops Pack8 {redirection}").returncode == 2


def test_a_closed_pipe_ends_silently_with_the_status_of_one():
    result = shell("CTO ops | true; echo ${PIPESTATUS[0]}")
    assert (result.stdout, result.stderr) == ("141\n", "")


def test_an_out_whose_reader_is_gone_is_a_closed_pipe(tmp_path):
    np.save(tmp_path / "x.npy", np.ones(100_000, np.float32))
    command = f"CTO encode {tmp_path}/x.npy /dev/stdout --codec pack16"
    result = shell(f"{command} | true; echo ${{PIPESTATUS[0]}}")
    assert (result.stdout, result.stderr) == ("141\n", "")


# ---- interrupts ----------------------------------------------------------------------------------


def test_ctrl_c_is_130(tmp_path):
    """While the second array, which takes seconds, is tried: the first one's table is out."""
    np.save(tmp_path / "small.npy", np.ones(8, np.float32))
    np.save(tmp_path / "large.npy", np.ones(2**23, np.float32))
    with subprocess.Popen(
        [*COMMAND, "roundtrip", "small.npy", "large.npy", "--provider", "cpu", "--codec", "msfp15"],
        cwd=tmp_path,  # a long folder would wrap in the first line
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert "small" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "\nAborted!\n")


# ---- names ---------------------------------------------------------------------------------------


@pytest.fixture
def naughty(tmp_path) -> Path:
    """A file whose name, and whose arrays' names, a terminal must not get to see."""
    path = tmp_path / f"{NAUGHTY}.npz"
    np.savez(path, **{NAUGHTY.replace("\udcff", ""): np.ones(3, np.float32), "n": np.arange(3)})
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_names_are_escaped_and_keep_to_one_line(naughty, tmp_path, encoding):
    name = NAUGHTY.replace("\udcff", "")
    out = tmp_path / f"{NAUGHTY}.packed"
    for arguments, lines in (
        (["encode", naughty, out, "--codec", "pack1", "--name", name], 1),
        (["encode", naughty, out, "--codec", "pack1", "--name", "other"], 1),
        (["encode", naughty, out, "--codec", "pack1"], 1),
        (["decode", out, tmp_path / f"{NAUGHTY}.npy"], 1),
        (["decode", naughty, out], 1),
        (["roundtrip", naughty, "--provider", "cpu", "--codec", "pack1"], 14),
    ):
        runner = CliRunner(charset=encoding)
        result = runner.invoke(main, [*map(str, arguments)])
        assert isinstance(result.exception, SystemExit | None), result.exc_info
        shown = result.output
        assert shown.isascii()
        assert SHOWN in shown
        assert shown.count("\n") == lines, shown


def test_a_stream_that_cannot_say_a_name_escapes_it(tmp_path):
    """It is readable, so that no rule of ours escapes it."""
    path = tmp_path / "5€.npy"
    np.save(path, np.ones(3, np.float32))
    result = subprocess.run(
        [*COMMAND, "encode", path, tmp_path / "5€.packed", "--codec", "pack1"],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, b"")
    assert rb"5\u20ac.packed: pack1 of" in result.stdout


def test_json_holds_names_as_they_are(naughty):
    result = CliRunner().invoke(main, ["roundtrip", str(naughty), "--json", "--provider", "cpu"])
    names = {json.loads(line)["array"] for line in result.stdout.splitlines() if '"trial"' in line}
    assert names == {NAUGHTY.replace("\udcff", "")}
