# SPDX-License-Identifier: MIT
"""`atomic_write`: all of a file or none of it, and what was at its place stays what it was."""

from __future__ import annotations

import errno
import io
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from cupy_training_ops.codecs import atomic_file
from cupy_training_ops.codecs.atomic_file import atomic_write


@pytest.fixture
def content(rng) -> bytes:
    return rng.bytes(1000)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def write(path: Path, content: bytes) -> None:
    with atomic_write(path) as stream:
        stream.write(content)


def break_off(path: Path, content: bytes, error: type[BaseException]) -> None:
    with atomic_write(path) as stream:
        stream.write(content)
        raise error


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kept", [0o600, 0o640, 0o755])
def test_a_file_keeps_its_mode_while_and_after_it_is_written(content, tmp_path, kept) -> None:
    path = tmp_path / "x"
    path.touch()
    path.chmod(kept)
    with atomic_write(path) as stream:
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
    with atomic_write(tmp_path / "pipe") as stream:
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


@pytest.mark.parametrize("bits", [stat.S_ISUID, stat.S_ISGID, stat.S_ISVTX])
def test_no_bit_that_acts_for_an_owner_is_handed_on(content, tmp_path, bits) -> None:
    """A new file may have another owner, for whom the old one's bit was not meant."""
    path = tmp_path / "x"
    path.touch()
    path.chmod(0o755 | bits)
    write(path, content)
    assert mode(path) == 0o755


def test_permissions_are_set_on_the_open_file(content, tmp_path, monkeypatch) -> None:
    """By its name it may be another one's by then."""
    (tmp_path / "x").touch()
    monkeypatch.delattr(os, "chmod")
    monkeypatch.delattr(os, "chown")
    write(tmp_path / "x", content)


def test_a_file_that_cannot_be_opened_for_writing_is_refused(
    content, tmp_path, monkeypatch
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    path.chmod(0o444)
    if os.geteuid() == 0:  # who may write everything
        really = os.open

        def refused(name, flags, *mode):
            if os.fspath(name) == os.fspath(path) and flags & os.O_WRONLY:
                raise PermissionError(13, "Permission denied", os.fspath(name))
            return really(name, flags, *mode)

        monkeypatch.setattr(os, "open", refused)
    with pytest.raises(PermissionError) as refusal:
        write(path, content)
    assert refusal.value.filename == str(path)
    assert (path.read_bytes(), mode(path), names(tmp_path)) == (b"old", 0o444, ["x"])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_root_leaves_a_file_to_its_owner(content, tmp_path) -> None:
    path = tmp_path / "x"
    path.touch()
    os.chown(path, 65534, 65534)
    write(path, content)
    assert (path.stat().st_uid, path.stat().st_gid, path.read_bytes()) == (65534, 65534, content)


def test_a_file_whose_owner_a_new_one_could_not_have_is_refused(
    content, tmp_path, monkeypatch
) -> None:
    (tmp_path / "x").write_bytes(b"old")
    status = (tmp_path / "x").stat()
    other = os.stat_result([*status[:4], status.st_uid + 1, *status[5:]])
    monkeypatch.setattr("cupy_training_ops.codecs.atomic_file._writable_status", lambda _: other)

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refused)
    with pytest.raises(PermissionError, match=r"x'$"):
        write(tmp_path / "x", content)
    assert ((tmp_path / "x").read_bytes(), names(tmp_path)) == (b"old", ["x"])


def test_what_replaces_a_private_file_is_private_from_the_start(
    content, tmp_path, monkeypatch
) -> None:
    path = tmp_path / "x"
    path.touch()
    path.chmod(0o600)
    made, really = [], os.fchmod

    def noted(number: int, mode: int) -> None:
        made.append(stat.S_IMODE(os.fstat(number).st_mode))
        really(number, mode)

    monkeypatch.setattr(os, "fchmod", noted)
    write(path, content)
    assert made == [0o600]


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="no /proc")
@pytest.mark.parametrize(
    "way", ["/proc/self/fd/{}", "/dev/fd/{}", "/proc/thread-self/fd/{}", "link"]
)
def test_a_descriptor_of_ours_is_written_where_it_stands(content, tmp_path, way) -> None:
    """A new file in its place would lose what was there, and what others write to it."""
    path = tmp_path / "log"
    path.write_bytes(b"before, ")
    with path.open("ab") as log:
        place = Path(way.format(log.fileno()))
        if way == "link":
            place = tmp_path / "to" / "stdout"
            place.parent.mkdir()
            (tmp_path / "fd").symlink_to(f"/dev/fd/{log.fileno()}")
            place.symlink_to("../fd")
        write(place, content)
        log.write(b", after")
    assert path.read_bytes() == b"before, " + content + b", after"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_an_error_names_the_file_that_was_asked_for(content, tmp_path) -> None:
    def no_space(path: Path) -> None:
        with atomic_write(path) as stream:
            stream.write(content)
            raise OSError(28, "No space left on device")

    for path, call in (
        (tmp_path / "x", no_space),
        (tmp_path / "missing" / "x", lambda path: write(path, content)),
        (Path("/dev/full"), lambda path: write(path, content)),
    ):
        with pytest.raises(OSError, match=r"\[Errno \d+\] .*: ") as refusal:
            call(path)
        assert (refusal.value.filename, refusal.value.filename2) == (str(path), None)
    assert names(tmp_path) == []


def test_what_a_signal_left_is_removed(content, tmp_path) -> None:
    with atomic_write(tmp_path / "x") as stream:
        stream.write(content)
        atomic_file.remove_unfinished()
        assert names(tmp_path) == []
        (tmp_path / "kept").touch()
        os.rename(tmp_path / "kept", stream.name)  # so that there is something to put in place
    assert names(tmp_path) == ["x"]
    atomic_file.remove_unfinished()
    assert names(tmp_path) == ["x"]


# ---- files that killed writers left, and what is on the disk -------------------------------------

DAY = 24 * 60 * 60
LEFT = ".0123456789abcdef.tmp"


def left(folder: Path, age: float, name: str = LEFT) -> Path:
    """A file as a killed writer leaves it, whose last write was so long ago."""
    path = folder / name
    path.write_bytes(b"half of it")
    when = time.time() - age
    os.utime(path, (when, when))
    return path


def test_what_a_killed_writer_left_is_removed_after_a_day(content, tmp_path) -> None:
    left(tmp_path, 1.1 * DAY)
    left(tmp_path, 0.9 * DAY, ".fedcba9876543210.tmp")
    others = [".0123.tmp", "0123456789abcdef.tmp", ".0123456789ABCDEF.tmp", ".bashrc"]
    for name in others:
        left(tmp_path, 2 * DAY, name)
    (tmp_path / ".aaaaaaaaaaaaaaaa.tmp").mkdir()
    os.mkfifo(tmp_path / ".bbbbbbbbbbbbbbbb.tmp")
    (tmp_path / ".cccccccccccccccc.tmp").symlink_to(left(tmp_path, 2 * DAY, "kept"))
    for name in (".aaaaaaaaaaaaaaaa.tmp", ".bbbbbbbbbbbbbbbb.tmp"):
        os.utime(tmp_path / name, (0, 0))
    before = set(names(tmp_path))
    write(tmp_path / "x", content)
    assert set(names(tmp_path)) == before - {LEFT} | {"x"}


def test_what_a_slow_writer_holds_stays(content, tmp_path) -> None:
    """Of another process, which has stopped for two days, and of a thread of this one."""
    path = tmp_path / "x"
    with atomic_write(path) as stream:
        (new,) = tmp_path.iterdir()
        os.utime(new, (0, 0))
        child = f"""
import sys
from pathlib import Path
from {atomic_write.__module__} import atomic_write
with atomic_write(Path(sys.argv[1])) as stream:
    stream.write(b"theirs")
"""
        for other in ("y", "z"):
            subprocess.run([sys.executable, "-c", child, tmp_path / other], check=True)
            write(tmp_path / other, b"ours")
        assert new.exists()
        stream.write(content)
    assert path.read_bytes() == content
    assert names(tmp_path) == ["x", "y", "z"]


def test_a_writer_that_is_killed_leaves_what_the_next_one_removes(content, tmp_path) -> None:
    killed = f"""
import os, signal
from pathlib import Path
from {atomic_write.__module__} import atomic_write
with atomic_write(Path({str(tmp_path / "x")!r})) as stream:
    stream.write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    ran = subprocess.run([sys.executable, "-c", killed])
    assert ran.returncode == -signal.SIGKILL
    (new,) = tmp_path.iterdir()
    write(tmp_path / "x", content)
    assert new.exists()  # it may be young
    os.utime(new, (0, 0))
    write(tmp_path / "x", content)
    assert names(tmp_path) == ["x"]


@pytest.mark.parametrize("sync", [True, False])
def test_bytes_are_on_the_disk_before_the_name_and_the_name_after(
    content, tmp_path, monkeypatch, sync
) -> None:
    steps = []

    def fsync(number: int) -> None:
        status = os.fstat(number)
        steps.append("folder" if stat.S_ISDIR(status.st_mode) else f"{status.st_size} bytes")

    def replace(old: Path, new: Path) -> None:
        steps.append("rename")
        rename(old, new)

    rename = os.replace
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    with atomic_write(tmp_path / "x", sync) as stream:
        stream.write(content)
    assert steps == ([f"{len(content)} bytes", "rename", "folder"] if sync else ["rename"])


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EINVAL, errno.ENOTSUP])
def test_what_the_disk_does_not_take_is_an_error(content, tmp_path, monkeypatch, number) -> None:
    """But where a file system has nothing to wait for."""
    (tmp_path / "x").write_bytes(b"old")

    def fsync(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    if number in (errno.EINVAL, errno.ENOTSUP):
        write(tmp_path / "x", content)
        assert (tmp_path / "x").read_bytes() == content
    else:
        with pytest.raises(OSError, match=os.strerror(number)):
            write(tmp_path / "x", content)
        assert (tmp_path / "x").read_bytes() == b"old"
    assert names(tmp_path) == ["x"]
