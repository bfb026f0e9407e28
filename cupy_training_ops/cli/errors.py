# SPDX-License-Identifier: MIT
"""The one place where an exception becomes a line on stderr and an exit status."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import click

from ..errors import CompileError, OpError, ProviderError, printable, shorten

# Exit statuses.
CHECK_FAILED, BAD_USAGE, NO_GPU, INTERRUPTED, CLOSED_PIPE = 1, 2, 3, 130, 141


class Failure(click.ClickException):
    """Bad input or output, noticed by a command."""


class Group(click.Group):
    """A group of commands whose exceptions become a line and an exit status (see _ENDINGS).

    Others are bugs, whose traceback is shown.
    """

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Parse arguments, as Click does; without arguments show the help."""
        _take_every_character()
        with _exits():  # --help writes here; Click's versions differ in what no argument does
            return super().make_context(info_name, args or ["--help"], parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, as Click does."""
        with _exits():
            return super().invoke(ctx)


def end_as(status: int) -> NoReturn:
    """Exit with the status of a process that the command started."""
    raise click.exceptions.Exit(status)


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Convert an OSError inside to a Failure that names the input `path`."""
    try:
        yield
    except OSError as error:
        raise Failure(f"{path}: {error.strerror or error}") from None


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Convert an OSError inside to a Failure that names the output `path`; not a closed pipe's."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror or error}") from None


@contextlib.contextmanager
def _exits() -> Iterator[None]:
    """Convert an exception of _ENDINGS inside to a line on stderr and Click's Exit."""
    try:
        yield
    except click.exceptions.Exit:
        raise
    except tuple(kind for kind, _, _ in _ENDINGS) as error:
        status, line = next((s, words(error)) for k, s, words in _ENDINGS if isinstance(error, k))
        _silence(sys.stdout)
        with contextlib.suppress(OSError):
            if line:
                click.echo(line, err=True)
        _silence(sys.stderr)
        raise click.exceptions.Exit(status) from None


def _usage(error: Any) -> str:
    """Return Click's own message as one line."""
    return _line(" ".join(error.format_message().split()))


def _line(error: object) -> str:
    return f"Error: {printable(shorten(str(error)))}"


def _log(error: object) -> str:
    """Return a compiler's log, of several lines."""
    return "\n".join(printable(line) for line in f"Error: {error}".splitlines())


def _memory(error: object) -> str:
    return _line(f"not enough memory: {error}".removesuffix(": "))


def _system(error: Any) -> str:
    """Return an error of the operating system as a line, with the file's name if it has one."""
    place = f"{error.filename}: " if error.filename else ""
    return _line(f"{place}{error.strerror or error}")


# (exception, exit status, its line): the first whose class fits.
_ENDINGS: tuple[tuple[type[BaseException], int, Callable[[Any], str]], ...] = (
    (KeyboardInterrupt, INTERRUPTED, lambda _: "\nAborted!"),
    (BrokenPipeError, CLOSED_PIPE, lambda _: ""),
    (click.UsageError, BAD_USAGE, _usage),
    (click.ClickException, BAD_USAGE, _line),
    (CompileError, CHECK_FAILED, _log),
    (ProviderError, NO_GPU, _line),
    (OpError, BAD_USAGE, _line),
    (MemoryError, BAD_USAGE, _memory),
    (OSError, BAD_USAGE, _system),
)


def _take_every_character() -> None:
    """Let stdout and stderr escape characters that they cannot encode, as names may have any."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _silence(stream: Any) -> None:
    """Flush a stream; if that fails, send it to /dev/null, or Python would fail again at exit."""
    try:
        if stream is not None:
            stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
