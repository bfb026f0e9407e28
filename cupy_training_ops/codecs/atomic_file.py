# SPDX-License-Identifier: MIT
"""Replacing a file by a whole new one, or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A stream whose bytes take the place of `path` at the end, all or none of them.

    A link stays, and what it points to is replaced; a file that was there keeps its mode. A pipe or
    a device gets the bytes, and a folder is refused.
    """
    old = _status(path)
    if old is None or stat.S_ISREG(old.st_mode):
        with _renamed_to(Path(os.path.realpath(path)), old) as stream:
            yield stream
    else:
        with path.open("wb") as stream:
            whole = io.BytesIO()
            yield whole
            stream.write(whole.getbuffer())


@contextlib.contextmanager
def _renamed_to(path: Path, old: os.stat_result | None) -> Iterator[IO[bytes]]:
    """A new file beside `path`, which becomes it at the end or vanishes."""
    new = path.with_name(f".{secrets.token_hex(8)}.tmp")
    created = new.open("xb")
    try:
        with created as stream:
            if old is not None:  # before the first byte, which the old mode may keep from others
                os.chmod(new, stat.S_IMODE(old.st_mode))
            yield stream
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _status(path: Path) -> os.stat_result | None:
    """What is at a path, or at the end of a link; None where there is nothing."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None
