# SPDX-License-Identifier: MIT
"""Write a benchmark's results into the tables of docs/performance.md.

    python scripts/performance_page.py benchmark.jsonl

Each row whose case was measured gets this run's figures; columns are those of its table. Rows keep
their order. Rows that the run did not measure, and cases without a row, are printed: the first are
older than the rest, the second need a row with the case's name alone in the table that fits.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
from benchmark_report import Record, cells, machine_line, records
from operator_pages import row_of

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
MACHINE = "NVIDIA "  # the page's line of the machine begins with it
EAGER = "case, called eagerly"
NAMED = {"case": "{}", "eager": "{}, called eagerly"}


@click.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path))
@click.option("--page", default=PAGE, type=click.Path(exists=True, path_type=Path))
def main(results: Path, page: Path) -> None:
    """Put RESULTS, which scripts/benchmark.py wrote, into the page's tables."""
    measured = records(results)
    text, old, new = filled(page.read_text("utf-8"), measured)
    page.write_text(text, "utf-8")
    for words, names in (("not measured", old), ("without a row", new)):
        click.echo(f"{words}: {len(names)}" + "".join(f"\n  {name}" for name in names))


def filled(text: str, measured: list[Record]) -> tuple[str, list[str], list[str]]:
    """The page with these results; rows that were not measured; cases that have no row."""
    waiting = {(r["kind"], r["case"]): r for r in measured if r["kind"] in ("case", "eager")}
    lines, old, columns = [], [], []
    for line in text.splitlines():
        if not line.startswith("|"):
            columns = []
        elif not columns:
            columns = split(line)
        elif is_benchmark(columns) and not line.startswith("|-"):
            name = split(line)[0]
            record = waiting.pop((kind_of(columns), name), None)
            line = joined(record, columns) if record else line
            old += [] if record else [name]
        lines.append(machine_line(measured) if line.startswith(MACHINE) else line)
    return "\n".join(lines) + "\n", old, [NAMED[kind].format(name) for kind, name in waiting]


def is_benchmark(columns: list[str]) -> bool:
    """Whether a table holds what scripts/benchmark.py measures."""
    return "ms (p20, p80)" in columns


def kind_of(columns: list[str]) -> str:
    """Records' name for the calls of a table."""
    return "eager" if columns[0] == EAGER else "case"


def joined(record: Record, columns: list[str]) -> str:
    """A row of a table with these columns."""
    filled_cells = cells(record)
    return row_of([filled_cells["case" if c == EAGER else c] for c in columns])


def split(line: str) -> list[str]:
    """The cells of a row."""
    return [cell.strip() for cell in line.strip("| ").split("|")]


if __name__ == "__main__":
    sys.exit(main())
