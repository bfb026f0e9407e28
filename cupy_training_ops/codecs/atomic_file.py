# SPDX-License-Identifier: MIT
"""Replacing a file by a whole new one, or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ..errors import pass_on

_PERMISSIONS = 0o777  # without the bits that let a program act for the file's owner
_DESCRIPTORS = ("/proc/self/fd", "/proc/thread-self/fd", "/dev/fd")
_MOST_LINKS = 40  # Linux follows as many
_unfinished: set[Path] = set()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A stream whose bytes take the place of `path` at the end, all or none of them.

    A link stays, and what it points to is replaced; a file that was there keeps its owner and its
    permissions, and is refused where it could not be opened for writing. A pipe, a device or a
    descriptor of this process gets the bytes, and a folder is refused. Raises OSError.
    """
    if is_replaced(path):
        with _named(path), _renamed_to(Path(os.path.realpath(path))) as stream:
            yield stream
    else:
        with _named(path), _opened(path) as stream:
            whole = io.BytesIO()
            yield whole
            stream.write(whole.getbuffer())


def is_replaced(path: Path) -> bool:
    """Whether `path` becomes a new file; else it is written into, and may be the process's stdout.

    /dev/stdout is a link to what the shell opened, maybe a file that others write as well.
    """
    return _descriptor(path) is None and (not path.exists() or path.is_file())


def remove_unfinished() -> None:
    """Remove the new files that a signal kept from becoming old ones or vanishing."""
    for path in list(_unfinished):
        _remove(path)


@contextlib.contextmanager
def _renamed_to(path: Path) -> Iterator[IO[bytes]]:
    """A new file beside `path`, which becomes it at the end or vanishes."""
    old = _writable_status(path)
    new = path.with_name(f".{secrets.token_hex(8)}.tmp")
    _unfinished.add(new)  # before it is there: a signal may come at any time
    try:
        mode = 0o666 if old is None else 0o600  # until it is as private as the old one
        with open(new, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as stream:
            if old is not None:
                _take_over(stream.fileno(), old)
            yield stream
        os.replace(new, path)
        _unfinished.discard(new)
    except BaseException:
        _remove(new)
        raise


def _take_over(descriptor: int, old: os.stat_result) -> None:
    """Owner and permissions of the old file; refused to those who may not give files away."""
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, old.st_mode & _PERMISSIONS)


def _writable_status(path: Path) -> os.stat_result | None:
    """What is at a path, opened as if to write into it; None where there is nothing."""
    try:
        number = os.open(path, os.O_WRONLY)
    except FileNotFoundError:
        return None
    try:
        return os.fstat(number)
    finally:
        os.close(number)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
    _unfinished.discard(path)


def _opened(path: Path) -> IO[bytes]:
    number = _descriptor(path)
    return path.open("wb") if number is None else os.fdopen(os.dup(number), "wb")


def _descriptor(path: Path) -> int | None:
    """N where a path is /dev/fd/N by whatever links: opened anew, it begins at its start."""
    folders = {os.path.realpath(folder) for folder in _DESCRIPTORS}
    for _ in range(_MOST_LINKS):
        folder = os.path.realpath(path.parent)
        if folder in folders and path.name.isdecimal():
            return int(path.name)
        path = Path(folder, path.name)
        if not path.is_symlink():
            return None
        path = Path(folder, os.readlink(path))
    return None


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors that name `path`, and neither nothing nor the new file beside it."""
    try:
        yield
    except OSError as error:
        pass_on(error)
        if error.errno is None or error.filename == os.fspath(path):
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None
