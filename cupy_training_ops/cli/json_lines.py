# SPDX-License-Identifier: MIT
"""`--json`: an object a line, as soon as it is known; docs/cli.md describes them."""

from __future__ import annotations

import json
import math
from typing import Any

import click

from .machine import system, versions

SCHEMA = 1  # goes up when a field changes its meaning or goes away


class JsonLines:
    """The objects of one command, each with schema, type and machine."""

    def __init__(self, command: str, machine: str, with_cuda: bool = False, **about: Any) -> None:
        self._machine = machine
        self.write("run", command=command, **system(), versions=versions(with_cuda), **about)

    def write(self, kind: str, **fields: Any) -> None:
        """Print one object; JSON has no infinity and no NaN, which become null."""
        whole = {"schema": SCHEMA, "type": kind, "machine": self._machine} | fields
        click.echo(json.dumps({name: _finite(v) for name, v in whole.items()}, allow_nan=False))


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One object a line (docs/cli.md); null for inf and -.",
)
