# SPDX-License-Identifier: MIT
"""Benchmark results as Markdown tables: one file, or two side by side."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from operator_pages import row_of

N_WORST = 5
EAGER_COLUMNS = ("case", "ms (p20, p80)", "peer", "its ms", "ours / its")
COLUMNS = (
    "case",
    "floor ms",
    "read twice",
    "aim ms",
    "ms (p20, p80)",
    "of copy rate",
    *EAGER_COLUMNS[2:],
)
Record = dict[str, Any]


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--family", help="Only this family's cases.")
def main(files: tuple[Path, ...], family: str | None) -> None:
    """Print the tables of FILES, which scripts/benchmark.py wrote."""
    if len(files) > 2:
        raise click.UsageError("one file, or two to compare")
    results = [records(path) for path in files]
    lines = single(results[0], family) if len(results) == 1 else side_by_side(*results, family)
    click.echo("\n".join(lines))


def records(path: Path) -> list[Record]:
    """The JSON lines of one result file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def cases(results: list[Record], family: str | None, kind: str = "case") -> list[Record]:
    """The cases, of one family where one is named."""
    return [r for r in results if r["kind"] == kind and (family or r["family"]) == r["family"]]


def single(results: list[Record], family: str | None) -> Iterator[str]:
    """The tables, and what is left out."""
    yield machine_line(results)
    yield ""
    yield from summary(cases(results, family))
    yield from tables(results, family)
    for r in cases(results, family):
        for name, reason in r.get("left_out", {}).items():
            yield f"* {r['case']}: {name} is left out: {reason}"


def tables(results: list[Record], family: str | None) -> Iterator[str]:
    """Time, aim, share of the copy rate and best peer of each case; eager calls behind them."""
    rows = cases(results, family)
    if rows:
        columns = [c for c in COLUMNS if any(cells(r)[c] for r in rows)]
        yield row_of(columns)
        yield "|" + "---|" * len(columns)
        yield from (row_of([cells(r)[c] for c in columns]) for r in rows)
        yield ""
    yield from eager_table(cases(results, family, "eager"))


def summary(results: list[Record]) -> Iterator[str]:
    """How far all are from the floor in the mean, and those that are furthest behind a peer."""
    over = [r["ms"]["median"] / floor_of(r) for r in results if r["family"] != "conv"]
    if over:
        mean = statistics.geometric_mean(over)
        yield f"Time over floor without convolutions, geometric mean of {len(over)}: {mean:.3f}"
    beside = sorted((r for r in results if r["peers"]), key=lambda r: -r["of_best_peer"])
    worst = ", ".join(f"{r['case']} {r['of_best_peer']:.2f}" for r in beside[:N_WORST])
    yield f"Furthest behind their best peers: {worst or 'none'}"
    yield ""


def floor_of(r: Record) -> float:
    """Milliseconds of the bytes that must move, with those that are read twice."""
    floor: float = r.get("floor_again_ms", r["floor_ms"])
    return floor


def eager_table(results: list[Record]) -> Iterator[str]:
    """Calls outside a graph, the host's time included."""
    if results:
        yield row_of(["case, called eagerly", *EAGER_COLUMNS[1:]])
        yield "|" + "---|" * len(EAGER_COLUMNS)
        for r in results:
            yield row_of(list(map(cells(r).__getitem__, EAGER_COLUMNS)))
        yield ""


def machine_line(results: list[Record]) -> str:
    """GPU, versions, commit, date and copy rate of a run."""
    m = results[0]
    liger = f"Liger-Kernel {m['liger']}, " if m.get("liger") else ""
    return (
        f"{m['gpu']}, driver {m['driver']}, CUDA {m['cuda']}, CuPy {m['cupy']}, "
        f"PyTorch {m['torch']}, {liger}commit {m['commit']}, {m['date']}; "
        f"copy rate {m['copy_gb_per_s']:.0f} GB/s"
    )


def cells(r: Record) -> dict[str, str]:
    """The text of each column; beyond its aim, or slower than a peer, a case is set in bold."""
    filled = {
        "case": r["case"],
        "ms (p20, p80)": times(r["ms"]),
        "peer": "",
        "its ms": "",
        "ours / its": "",
    }
    if r["kind"] == "case":
        filled |= {
            "floor ms": f"{r['floor_ms']:.4f}",
            "read twice": f"{r['floor_again_ms']:.4f}" if "floor_again_ms" in r else "",
            "aim ms": f"{r['aim_ms']:.4f}",
            "ms (p20, p80)": bold(times(r["ms"]), r["ms"]["median"] > r["aim_ms"]),
            "of copy rate": f"{r['share']:.0%}",
        }
    return filled | (peer_cells(r) if r["peers"] else {})


def times(ms: Record) -> str:
    """Median and percentiles."""
    return f"{ms['median']:.4f} ({ms['p20']:.4f}, {ms['p80']:.4f})"


def peer_cells(r: Record) -> dict[str, str]:
    """The best peer, its time, and the ratio to it."""
    name, peer = min(r["peers"].items(), key=lambda item: item[1]["median"])
    ratio = bold(f"{r['of_best_peer']:.2f}", r["of_best_peer"] > 1.03)
    return {"peer": name, "its ms": f"{peer['median']:.4f}", "ours / its": ratio}


def bold(text: str, marked: bool) -> str:
    """Text, in bold where marked."""
    return f"**{text}**" if marked else text


def side_by_side(before: list[Record], after: list[Record], family: str | None) -> Iterator[str]:
    """The times of two runs and their ratio."""
    yield f"before: {machine_line(before)}"
    yield f"after: {machine_line(after)}"
    yield ""
    yield "| case | before ms | after ms | after / before |"
    yield "|---|---|---|---|"
    earlier = {r["case"]: r["ms"]["median"] for r in cases(before, family)}
    for r in cases(after, family):
        old, new = earlier.get(r["case"]), r["ms"]["median"]
        if old:
            yield f"| {r['case']} | {old:.4f} | {new:.4f} | {new / old:.2f} |"


if __name__ == "__main__":
    sys.exit(main())
