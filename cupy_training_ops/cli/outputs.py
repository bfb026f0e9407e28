# SPDX-License-Identifier: MIT
"""Where a command writes: a file, a folder of files, or stdout; whole or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from urllib.parse import quote, unquote

import click

from ..codecs.atomic_file import atomic_write, is_replaced, remove_unfinished
from .errors import Failure, writing
from .inputs import NAMELESS, STREAM
from .processes import cleanup
from .terminal import say

force_option = click.option("--force", is_flag=True, help="Replace files that are there.")


sync_option = click.option(
    "--sync/--no-sync",
    default=True,
    help="Wait until files are on the disk before they replace others.  [default: sync]",
)


def is_folder(out: str) -> bool:
    """Return True if files are to be made in it: a folder, or a path that ends like one."""
    return out.endswith(("/", os.sep)) or os.path.isdir(out)


def out_files(out: str, names: list[str], ending: str) -> list[str]:
    """Return the path for each array: [out], or in a folder "name" + ending, escaped."""
    if not is_folder(out):
        return [out]
    return [os.path.join(out, f"{_plain(name)}{ending}") for name in names]


def name_of(file_stem: str) -> str:
    """Return the name of an array from its file's in a folder, the inverse of `out_files`."""
    return unquote(file_stem, errors="backslashreplace")


def refuse_overwriting(outs: list[str], files: tuple[str, ...], force: bool) -> None:
    """Refuse paths to write (outs) that are inputs (files) or equal, or exist, without force."""
    for out in outs:
        if out == STREAM:
            if sys.stdout is None or sys.stdout.isatty():
                how = "closed" if sys.stdout is None else "a terminal"
                raise Failure(f"{out}: stdout is {how}; expected a file or a pipe")
            continue
        for file in files:
            _refuse_same(file, out)
        if not force and is_replaced(Path(out)) and os.path.exists(out):
            raise Failure(f"{out}: is there already; --force replaces it")
    for out in outs:
        if outs.count(out) > 1:
            raise Failure(f"{out}: two arrays would be written there; expected different names")


def make_folder(out: str) -> None:
    """Make OUT, and its parents, if it is a folder and does not exist."""
    if is_folder(out):
        with writing(out):
            os.makedirs(out, exist_ok=True)


@contextlib.contextmanager
def open_out(out: str, sync: bool = True) -> Iterator[IO[bytes]]:
    """Yield a stream whose content becomes OUT at the end; on errors OUT stays as it is.

    sync: wait until it is on the disk.
    """
    with cleanup(remove_unfinished), writing(out), _stream(out, sync) as stream:
        yield stream


def say_done(out: str, done: str) -> None:
    """Print "OUT: done"; on stderr if OUT is stdout, a pipe or a device."""
    say(f"{out}: {done}", err=out == STREAM or not is_replaced(Path(out)))


def _plain(name: str) -> str:
    """Escape an array's name as a file name: "a/b" as "a%2Fb", ".a" as "%2Ea"."""
    plain = "".join(
        c if c.isprintable() and c not in "/\\%" else quote(c, safe="", errors="surrogatepass")
        for c in name or NAMELESS
    )
    return f"%2E{plain[1:]}" if plain.startswith(".") else plain


@contextlib.contextmanager
def _stream(out: str, sync: bool) -> Iterator[IO[bytes]]:
    """Yield a stream that replaces a file at the end, or for "-" is written to stdout at once.

    sync: wait until the file is on the disk.
    """
    if out != STREAM:
        with atomic_write(Path(out), sync) as stream:
            yield stream
        return
    whole = io.BytesIO()
    yield whole
    sys.stdout.buffer.write(whole.getbuffer())
    sys.stdout.flush()


def _refuse_same(file: str, out: str) -> None:
    """Refuse an OUT that is FILE, by whatever names."""
    with contextlib.suppress(OSError):  # one of them is not there
        if file != STREAM and os.path.samefile(file, out):
            raise Failure(f"{out}: OUT is FILE itself ({file}); expected another place")
