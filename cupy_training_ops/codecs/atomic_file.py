# SPDX-License-Identifier: MIT
"""Atomic replacement of a file: readers see the old one or the whole new one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from ..errors import raise_if_from_handler

_PERMISSIONS = 0o777  # without setuid and setgid
_DESCRIPTORS = ("/proc/self/fd", "/proc/thread-self/fd", "/dev/fd")
_MOST_LINKS = 40  # links followed in a path: Linux's limit
_UNFINISHED = re.compile(r"\.[0-9a-f]{16}\.tmp")  # names of temporary files
_ABANDONED = 24 * 60 * 60.0  # seconds since the last write, if no process has the lock
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP)  # errors of file systems without fsync
_unfinished: set[Path] = set()  # temporary files of this process


@contextlib.contextmanager
def atomic_write(path: Path, sync: bool = True) -> Iterator[IO[bytes]]:
    """Yield a stream whose bytes replace those of `path` at the end, all or none of them.

    sync: fsync the file, rename it, fsync the folder: after a crash there is the old file or the
    new one.
    The new file has the old one's owner and permissions; a file that is not writable is refused, as
    a folder is. Of a link the file that it points to is replaced. To a pipe, a device or a
    descriptor of this process the bytes are written. Removes unfinished files in the folder, of
    writers killed a day ago or earlier. Raises OSError.
    """
    if is_replaced(path):
        with (
            _name_path_in_errors(path),
            _new_file_for(Path(os.path.realpath(path)), sync) as stream,
        ):
            yield stream
    else:
        with _name_path_in_errors(path), _open(path) as stream:
            whole = io.BytesIO()
            yield whole
            stream.write(whole.getbuffer())


def write_together(files: Mapping[Path, Iterable[Any]], sync: bool = True) -> None:
    """Write several files, all of them before any is replaced; the last is replaced first.

    files: for each path the parts of its new content, bytes-like objects. sync: fsync each file
    before it replaces another.
    """
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(atomic_write(path, sync)) for path in files]
        for stream, parts in zip(streams, files.values(), strict=True):
            for part in parts:
                stream.write(part)


def is_replaced(path: Path) -> bool:
    """Return True if `path` is replaced by a new file; else bytes are written to it.

    /dev/stdout may be a link to a file that other processes also write.
    """
    return _descriptor(path) is None and (not path.exists() or path.is_file())


def remove_unfinished() -> None:
    """Remove temporary files that were left because a signal interrupted `atomic_write`."""
    for path in list(_unfinished):
        _remove(path)


@contextlib.contextmanager
def _new_file_for(path: Path, sync: bool) -> Iterator[IO[bytes]]:
    """Yield a new, locked file beside `path`; at the end rename it to `path`, or on errors remove
    it."""
    old = _writable_status(path)
    _remove_abandoned(path.parent)
    new = path.with_name(f".{secrets.token_hex(8)}.tmp")
    _unfinished.add(new)  # before it exists: a signal may come at any time
    try:
        mode = 0o666 if old is None else 0o600  # private until it has the old one's permissions
        with open(new, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as stream:
            _lock(stream.fileno())
            if old is not None:
                _copy_ownership(stream.fileno(), old)
            yield stream
            if sync:
                stream.flush()
                _sync(stream.fileno())
        os.replace(new, path)
        _unfinished.discard(new)
    except BaseException:
        _remove(new)
        raise
    if sync:
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """fsync a folder, if it may be read."""
    try:
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return
    try:
        _sync(number)
    finally:
        os.close(number)


def _sync(number: int) -> None:
    """fsync a descriptor; do nothing on file systems without it."""
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def _remove_abandoned(folder: Path) -> None:
    """Remove temporary files that no process has locked, or written for a day."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _UNFINISHED.fullmatch(entry.name):
                with contextlib.suppress(OSError):  # others may remove it, or own it
                    _remove_if_abandoned(entry.path)


def _remove_if_abandoned(path: str) -> None:
    """Remove a temporary file that is old and that no process has locked."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(number)
        is_old = time.time() - status.st_mtime > _ABANDONED
        if stat.S_ISREG(status.st_mode) and is_old and _lock(number):
            os.unlink(path)
    finally:
        os.close(number)


def _lock(number: int) -> bool:
    """Lock an open file; return False if another process has it, or locks are not supported."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _copy_ownership(descriptor: int, old: os.stat_result) -> None:
    """Set a file's owner and permissions to the old one's; OSError if that is not permitted."""
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, old.st_mode & _PERMISSIONS)


def _writable_status(path: Path) -> os.stat_result | None:
    """Return the status of a file, opened for writing; None if it does not exist."""
    try:
        number = os.open(path, os.O_WRONLY)
    except FileNotFoundError:
        return None
    try:
        return os.fstat(number)
    finally:
        os.close(number)


def _remove(path: Path) -> None:
    """Remove a temporary file of this process, if it exists."""
    with contextlib.suppress(OSError):
        path.unlink()
    _unfinished.discard(path)


def _open(path: Path) -> IO[bytes]:
    """Open a pipe or device for writing; of /dev/fd/N duplicate descriptor N, at its position."""
    number = _descriptor(path)
    return path.open("wb") if number is None else os.fdopen(os.dup(number), "wb")


def _descriptor(path: Path) -> int | None:
    """Return N if a path is /dev/fd/N, also through links, else None.

    Opening it again would start at byte 0.
    """
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
def _name_path_in_errors(path: Path) -> Iterator[None]:
    """Let an OSError name `path`, not the temporary file.

    An error that names another file of the same folder, as in `write_together`, is unchanged.
    """
    try:
        yield
    except OSError as error:
        raise_if_from_handler(error)
        folder, name = os.path.split(str(error.filename or ""))
        is_named = name and not _UNFINISHED.fullmatch(name) and folder == os.path.dirname(path)
        if error.errno is None or is_named:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None
