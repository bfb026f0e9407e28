# SPDX-License-Identifier: MIT
"""Lines that hold names."""

from __future__ import annotations

import click

from ..errors import printable


def say(line: str, err: bool = False) -> None:
    """Print one line that holds a name."""
    click.echo(printable(line), err=err)
