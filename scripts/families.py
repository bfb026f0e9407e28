# SPDX-License-Identifier: MIT
"""Operators of families: print them, one a line; those of all where none is named."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import click

from cupy_training_ops.registry import FAMILIES

family_option = click.option(
    "--family",
    "families",
    multiple=True,
    type=click.Choice(list(FAMILIES)),
    help="Only this family; may be given more than once.",
)


def operators(families: Iterable[str]) -> list[str]:
    """The operators of these families; of all where none is named."""
    return sorted(name for family in families or FAMILIES for name in FAMILIES[family])


@click.command()
@click.argument("families", nargs=-1, type=click.Choice(list(FAMILIES)))
def main(families: tuple[str, ...]) -> None:
    """Print the operators of FAMILIES."""
    click.echo("\n".join(operators(families)))


if __name__ == "__main__":
    main()
