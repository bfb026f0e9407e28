# SPDX-License-Identifier: MIT
"""The one place where what went wrong becomes a line on stderr and an exit status."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import click

from ..errors import CompileError, OpError, ProviderError, printable, shorten

CHECK_FAILED, BAD_USAGE, NO_GPU, INTERRUPTED, CLOSED_PIPE = 1, 2, 3, 130, 141


class Failure(click.ClickException):
    """Bad input or output, noticed by a command."""


class Group(click.Group):
    """A group whose commands end in a result, one line and a status, or a bug's traceback."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        _take_every_character()
        with _exits():  # --help writes here; Click's versions differ in what no argument does
            return super().make_context(info_name, args or ["--help"], parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _exits():
            return super().invoke(ctx)


def end_as(status: int) -> NoReturn:
    """End with the status of a process that the command started."""
    raise click.exceptions.Exit(status)


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Name the input that an operating system's error is about."""
    try:
        yield
    except OSError as error:
        raise Failure(f"{path}: {error.strerror or error}") from None


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Name the output that an operating system's error is about; a closed pipe stays one."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror or error}") from None


@contextlib.contextmanager
def _exits() -> Iterator[None]:
    """End with a line and a status on every exception that is no bug."""
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
    return _line(" ".join(error.format_message().split()))


def _line(error: object) -> str:
    return f"Error: {printable(shorten(str(error)))}"


def _log(error: object) -> str:
    """A compiler's log, line by line."""
    return "\n".join(printable(line) for line in f"Error: {error}".splitlines())


def _memory(error: object) -> str:
    return _line(f"not enough memory: {error}".removesuffix(": "))


def _system(error: Any) -> str:
    """An error of the operating system, with the file's name if it has one."""
    place = f"{error.filename}: " if error.filename else ""
    return _line(f"{place}{error.strerror or error}")


# The first that fits.
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
    """Escape what a stream cannot encode: a name may hold any character, and half of one."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _silence(stream: Any) -> None:
    """Let go of what a stream could not write, or Python tries once more when it ends."""
    try:
        if stream is not None:
            stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
