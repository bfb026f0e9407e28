# SPDX-License-Identifier: MIT
"""Time the kernels of another checkout, OLD, and of this one in turns on this machine's GPU.

    python3 scripts/compare_kernels.py ../before --cases gather --cases 'Scale[f4]'

A row a case: medians, and of the ratios of each round the median and the percentiles; in bold where
even the lower percentile is beyond what is allowed.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import cupy
from calls import call, input_sets
from machine import machine
from timing import CupyWork
from turns import SERVE, Checkout, CheckoutError, in_turns, ratios, serve

HERE = Path(__file__).resolve().parent.parent
REPLAYS = 5  # in one turn
ALLOWED = 1.02
Pair = tuple[Checkout, Checkout]


@click.command()
@click.argument("old", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--cases", "words", multiple=True, help="Only a family, or cases whose name contains this."
)
@click.option("--rounds", type=click.IntRange(2), default=20, show_default=True)
@click.option("--dry-run", is_flag=True, help="Only list the cases; needs no GPU.")
def main(old: Path, words: tuple[str, ...], rounds: int, dry_run: bool) -> None:
    """Compare OLD with this checkout."""
    with Checkout(old, __file__) as before, Checkout(HERE, __file__) as after:
        pair = before, after
        names = common(before.ask("case_families"), after.ask("case_families"), words)
        if dry_run:
            click.echo("\n".join(names))
            return
        click.echo(f"old: {old}; new: {after.ask('measured_with')}\n")
        click.echo("| case | old ms | new ms | new / old (p20, p80) |\n|---|---|---|---|")
        failures = [failure for name in names for failure in compared(pair, name, rounds)]
    if failures:
        click.echo("\n".join(failures), err=True)
        sys.exit(1)


def common(before: dict[str, str], after: dict[str, str], words: Sequence[str]) -> list[str]:
    """The chosen cases that both have; the others are named on stderr."""
    chosen = [name for name, family in after.items() if is_chosen(name, family, words)]
    for name in chosen:
        if name not in before:
            click.echo(f"{name}: the old checkout has no such case", err=True)
    return [name for name in chosen if name in before]


def is_chosen(name: str, family: str, words: Sequence[str]) -> bool:
    """Whether one of the words is the family or a part of the name; without words, yes."""
    return not words or any(word == family or word in name for word in words)


def compared(pair: Pair, name: str, rounds: int) -> Iterator[str]:
    """Print one case's row; what went wrong."""
    try:
        for checkout in pair:
            checkout.ask("prepare", name)
        click.echo(row(name, *in_turns(pair, rounds, "milliseconds")))
    except CheckoutError as error:
        yield f"{name}: {error}"


def row(name: str, before: Sequence[float], after: Sequence[float]) -> str:
    """Medians, and the ratio with its scatter over the rounds."""
    median, low, high = ratios(before, after)
    ratio = f"{median:.3f} ({low:.3f}, {high:.3f})"
    medians = f"{statistics.median(before):.4f} | {statistics.median(after):.4f}"
    return f"| {name} | {medians} | {f'**{ratio}**' if low > ALLOWED else ratio} |"


# ---- in the process of each checkout -------------------------------------------------------------

current: dict[str, Any] = {}  # the case whose turn it is


def measured_with() -> str:
    """GPU, versions, commit and date."""
    return ", ".join(f"{name} {value}" for name, value in machine().items())


def case_families() -> dict[str, str]:
    """Every case's name, and its family where the checkout's cases tell it."""
    from cases import all_cases

    return {case.id: getattr(case, "family", "") for case in all_cases()}


def prepare(name: str) -> None:
    """Make the inputs of a case and capture its calls."""
    from cases import all_cases

    from cupy_training_ops import get_op

    current.clear()
    cupy.get_default_memory_pool().free_all_blocks()
    (case,) = (case for case in all_cases() if case.id == name)
    op = get_op(case.op)(**case.attributes)
    sets, _ = input_sets(case, op)
    current["work"] = CupyWork([call(case, op, inputs) for inputs in sets])


def milliseconds() -> float:
    """The median of a few replays."""
    return statistics.median(current["work"].samples(REPLAYS))


if __name__ == "__main__":
    if SERVE in sys.argv[1:2]:
        serve(measured_with, case_families, prepare, milliseconds)
    else:
        main()
