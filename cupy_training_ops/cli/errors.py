# SPDX-License-Identifier: MIT
"""One place where what went wrong becomes one line on stderr and an exit code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import click

from ..errors import CompileError, OpError

CHECK_FAILED = 1


class Failure(click.ClickException):
    """Bad input: prints `Error: <message>` and leaves with exit code 2."""

    exit_code = 2


class CheckFailure(Failure):
    """Something that should have worked did not."""

    exit_code = CHECK_FAILED


class NoGpu(Failure):
    """A GPU was asked for, and there is none."""

    exit_code = 3


class Group(click.Group):
    """A group whose commands end in a result, a Failure, or a bug's traceback."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        with one_line() if args else contextlib.nullcontext():  # without any, Click shows the help
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with one_line():
            return super().invoke(ctx)


@contextlib.contextmanager
def one_line() -> Iterator[None]:
    """Everything that bad input can raise, as a Failure."""
    try:
        yield
    except click.UsageError as error:
        raise Failure(" ".join(error.format_message().split())) from None
    except CompileError as error:
        raise CheckFailure(str(error)) from None
    except OpError as error:
        raise Failure(str(error)) from None
    except MemoryError as error:
        raise Failure(f"not enough memory: {error}") from None
