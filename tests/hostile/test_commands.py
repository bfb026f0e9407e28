# SPDX-License-Identifier: MIT
"""Every command with every bad path, and with every stream that does not take what is written."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cupy_training_ops import compress
from cupy_training_ops.cli import main

from .test_files import REFUSED, of_command

X = np.arange(12, dtype=np.float32)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> None:
    """A folder with an array and a packed one, in which a command runs."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    compress(X, "pack8").save("x.packed")
    Path("folder").mkdir()
    Path("text").write_text("no array\n", encoding="utf-8")
    Path("empty").write_bytes(b"")
    Path("pickled").write_bytes(pickle.dumps([1]))
    Path("nowhere").symlink_to("missing")
    Path("circle").symlink_to("circle")
    with Path("sparse.npy").open("wb") as stream:
        stream.write(Path("x.npy").read_bytes())
        stream.truncate(2**40)


# ---- paths ---------------------------------------------------------------------------------------

NO_FILES = [
    "missing", "missing/x.npy", "folder", ".", "", "text", "empty", "pickled", "nowhere", "circle",
    "x.npy/x", "-", "/dev/null", "/proc/self/mem", "a" * 300, "line\nbreak", "\x1b[31mred",
    "\u202eabc", os.fsdecode(b"\xff\xfe"),
]  # fmt: skip
NO_OUTS = ["missing/out", "x.npy/", "", "circle", "x.npy/out", "/dev/full", "a" * 300, "text"]
ODD_OUTS = ["line\nbreak", "\x1b[31mred", "\u202eabc", os.fsdecode(b"\xff\xfe"), "nowhere"]
READERS = [
    ("info", "{}"),
    ("encode", "{}", "out", "--codec", "pack8"),
    ("decode", "{}", "out"),
    ("roundtrip", "{}", "--provider", "cpu"),
    ("roundtrip", "x.npy", "{}", "--provider", "cpu", "--codec", "pack8"),
]
WRITERS = [("encode", "x.npy", "{}", "--codec", "pack8"), ("decode", "x.packed", "{}")]


def with_path(command: tuple[str, ...], path: str) -> list[str]:
    return [path if part == "{}" else part for part in command]


@pytest.mark.parametrize("command", READERS, ids=" ".join)
@pytest.mark.parametrize("path", NO_FILES, ids=ascii)
def test_what_is_no_file_of_arrays_is_refused(command, path) -> None:
    assert of_command(with_path(command, path)) == [REFUSED]
    assert not Path("out").exists()


@pytest.mark.parametrize("command", WRITERS, ids=" ".join)
@pytest.mark.parametrize("path", NO_OUTS, ids=ascii)
def test_what_cannot_be_written_is_refused(command, path) -> None:
    before = sorted(os.listdir())
    assert of_command(with_path(command, path)) == [REFUSED]
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("command", WRITERS, ids=" ".join)
@pytest.mark.parametrize("path", ODD_OUTS, ids=ascii)
def test_an_odd_name_is_written_and_shown_in_a_line(command, path) -> None:
    before = set(os.listdir())
    assert of_command(with_path(command, path)) == []
    assert set(os.listdir()) == before | {"missing" if path == "nowhere" else path}
    assert Path(path).stat().st_size > 100


@pytest.mark.parametrize("command", WRITERS, ids=" ".join)
@pytest.mark.parametrize("path", ["folder", "folder/", "new/", "new/er/"])
def test_a_folder_gets_a_file(command, path) -> None:
    assert of_command(with_path(command, path)) == []
    name = "x.npz" if command[0] == "encode" else "x.npy"
    assert os.listdir(path) == [name]
    assert of_command(with_path(command, path)) == [REFUSED]  # it is there already


@pytest.mark.parametrize("command", WRITERS, ids=" ".join)
def test_what_is_there_is_replaced_by_force(command) -> None:
    assert of_command([*with_path(command, "text"), "--force"]) == []
    assert Path("text").stat().st_size > 100


@pytest.mark.parametrize("command", ["encode", "roundtrip"])
def test_a_file_that_says_less_than_it_is_long(command) -> None:
    """Only what its header says is read."""
    rest = ["out", "--codec", "pack8"] if command == "encode" else ["--codec", "pack8"]
    assert of_command([command, "sparse.npy", *rest]) == []


def test_a_small_file_does_not_become_a_large_one() -> None:
    """Whose codes are deflated, and more than its header says."""
    import tracemalloc

    header = np.load("x.packed")["header"]
    np.savez_compressed("bomb.npz", header=header, code=np.zeros(2**25, np.uint8))
    assert Path("bomb.npz").stat().st_size < 2**17
    tracemalloc.start()
    try:
        assert of_command(["decode", "bomb.npz", "out"]) == [REFUSED]
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


# ---- streams -------------------------------------------------------------------------------------


def full() -> io.TextIOBase:
    return Path("/dev/full").open("w", encoding="utf-8")


def broken_pipe() -> io.TextIOBase:
    reading, writing = os.pipe()
    os.close(reading)
    return open(writing, "w", encoding="utf-8")


def none() -> None:
    """What Python makes of a closed stream."""


def narrow() -> io.TextIOBase:
    return io.TextIOWrapper(io.BytesIO(), encoding="ascii")


STREAMS: dict[str, tuple[Callable[[], io.TextIOBase | None], int | None]] = {
    "full": (full, 2),
    "a broken pipe": (broken_pipe, 141),
    "none": (none, None),
    "ascii": (narrow, None),
}
SPEAKING = [
    ["--help"], *([name, "--help"] for name in main.commands), ["ops"], ["ops", "GeluGrad"],
    ["doctor"],
    ["roundtrip", "--shape", "2,3", "--codec", "pack8", "--provider", "cpu"],
    ["roundtrip", "x.npy", "--json", "--provider", "cpu"], ["decode", "x.packed", "out"],
    ["encode", "x.npy", "out", "--codec", "pack1"],
    ["--version"], ["ops", "gelu_grad"], ["info", "x.packed", "x.npy"], ["completion", "zsh"],
    ["encode", "x.npy", "folder/", "--codec", "pack1"],
]  # fmt: skip
REFUSING = [
    ["nonsense"], ["--nonsense"], ["ops", "nonsense"], ["verify", "--op", "nonsense"], ["encode"],
    ["ops", "--version"], ["completion", "tcsh"], ["roundtrip", "--min-snr", "x"],
    ["compile", "--op", "nonsense"], ["decode", "missing", "out"], ["roundtrip", "--shape", "2,x"],
    ["roundtrip", "--seed", "-1"], ["encode", "x.npy", "out", "--codec", "pack9"],
]  # fmt: skip


def ended(command: list[str], stream: io.TextIOBase | None) -> tuple[int | None, str]:
    """The status and the words of a command whose results go to this stream."""
    words = io.StringIO()
    with contextlib.redirect_stderr(words), contextlib.redirect_stdout(stream):
        try:
            main(command, prog_name="cupy-training-ops")
        except SystemExit as error:
            status = error.code
        finally:
            with contextlib.suppress(OSError):
                if sys.stdout:
                    sys.stdout.close()
    return status or 0, words.getvalue()


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("command", SPEAKING, ids=" ".join)
def test_a_stream_that_takes_nothing_is_a_status(command, name) -> None:
    make, expected = STREAMS[name]
    if command == ["doctor"] and expected is None:
        pytest.skip("it ends as this machine is")
    status, words = ended(command, make())
    assert status == (expected or 0), words
    assert [line.partition(" ")[0] for line in words.splitlines()] == ["Error:"] * (status == 2)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("command", REFUSING, ids=" ".join)
def test_a_refusal_needs_no_stdout(command, name) -> None:
    status, words = ended(command, STREAMS[name][0]())
    assert (status, [line.partition(" ")[0] for line in words.splitlines()]) == (2, ["Error:"])
