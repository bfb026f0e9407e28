# SPDX-License-Identifier: MIT
"""`replacing`: all of a file or none of it, and what was at its place stays what it was."""

from __future__ import annotations

import io
import os
import stat
import threading
from pathlib import Path

import numpy as np
import pytest

from cupy_training_ops.codecs.atomic_file import replacing


@pytest.fixture
def content(rng) -> bytes:
    return rng.bytes(1000)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def write(path: Path, content: bytes) -> None:
    with replacing(path) as stream:
        stream.write(content)


def break_off(path: Path, content: bytes, error: type[BaseException]) -> None:
    with replacing(path) as stream:
        stream.write(content)
        raise error


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kept", [0o600, 0o640, 0o755])
def test_a_file_keeps_its_mode_while_and_after_it_is_written(content, tmp_path, kept) -> None:
    path = tmp_path / "x"
    path.touch()
    path.chmod(kept)
    with replacing(path) as stream:
        stream.write(content)
        assert [mode(there) for there in tmp_path.iterdir()] == [kept, kept]
    assert (path.read_bytes(), mode(path), names(tmp_path)) == (content, kept, ["x"])


def test_the_umask_of_the_process_is_left_alone(content, tmp_path, monkeypatch) -> None:
    """It belongs to all threads, which make files meanwhile."""
    monkeypatch.delattr(os, "umask")
    write(tmp_path / "x", content)
    assert (tmp_path / "x").read_bytes() == content


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_its_file_is_written(content, tmp_path, there) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "x", tmp_path / "link"
    link.symlink_to(os.path.join("folder", "x"))
    if there:
        target.write_bytes(b"old")
    write(link, content)
    assert (link.is_symlink(), target.is_symlink()) == (True, False)
    assert (target.read_bytes(), names(target.parent)) == (content, ["x"])


def test_a_link_to_itself_is_refused(content, tmp_path) -> None:
    (tmp_path / "x").symlink_to("x")
    with pytest.raises(OSError, match="symbolic links"):
        write(tmp_path / "x", content)
    assert (names(tmp_path), (tmp_path / "x").is_symlink()) == (["x"], True)


def test_a_folder_is_refused(content, tmp_path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write(tmp_path / "folder", content)
    assert names(tmp_path) == ["folder"]


def test_the_longest_name_there_can_be_is_written(content, tmp_path) -> None:
    write(tmp_path / ("x" * 255), content)
    assert (tmp_path / ("x" * 255)).read_bytes() == content


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, OSError])
@pytest.mark.parametrize("there", [True, False])
def test_what_breaks_leaves_what_was_there(content, tmp_path, error, there) -> None:
    if there:
        (tmp_path / "x").write_bytes(b"old")
    before = names(tmp_path)
    with pytest.raises(error):
        break_off(tmp_path / "x", content, error)
    assert names(tmp_path) == before
    assert not there or (tmp_path / "x").read_bytes() == b"old"


def piped(path: Path) -> tuple[threading.Thread, list[bytes]]:
    """A reader of a new pipe, and where it puts what comes."""
    os.mkfifo(path)
    came: list[bytes] = []
    reader = threading.Thread(target=lambda: came.append(path.read_bytes()), daemon=True)
    reader.start()
    return reader, came


def test_a_pipe_gets_the_bytes_of_any_writer_and_stays(rng, tmp_path) -> None:
    x = rng.standard_normal(100)
    reader, came = piped(tmp_path / "pipe")
    with replacing(tmp_path / "pipe") as stream:
        np.savez(stream, x=x)  # which goes back to fill in lengths, as no pipe can
    reader.join(timeout=60)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    with np.load(io.BytesIO(came[0])) as loaded:
        np.testing.assert_array_equal(loaded["x"], x)


def test_what_breaks_puts_nothing_into_a_pipe(content, tmp_path) -> None:
    reader, came = piped(tmp_path / "pipe")
    with pytest.raises(KeyboardInterrupt):
        break_off(tmp_path / "pipe", content, KeyboardInterrupt)
    reader.join(timeout=60)
    assert came == [b""]
