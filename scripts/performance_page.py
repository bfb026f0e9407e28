# SPDX-License-Identifier: MIT
"""Tables of docs/performance.md and docs/performance/, made from docs/benchmark.jsonl.

    python scripts/performance_page.py benchmark.jsonl

takes the records of another run of scripts/benchmark.py in place of older ones of the same cases;
scripts/generate_tables.py writes the pages.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from benchmark_report import Record, floor_of, machine_line, records, row_of, tables

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "docs" / "benchmark.jsonl"
PAGES = ROOT / "docs" / "performance"
NOTE = "<!-- written by scripts/generate_tables.py from docs/benchmark.jsonl -->"
# The README's rows, each with its case.
CASES = {
    "`msfp15`, encoding 64 Mi float32": "GistPackMsfp15Encoder[f4]",
    "`pack8`, decoding 64 Mi float32": "GistPack8Decoder[f4]",
    "LayerNorm's gradient, 64 Mi float16": "LayerNormalizationGrad[f2,1024]",
    "cross-entropy and gradient, 8,192 x 131,072": "CrossEntropyLossAndGrad[bf2,over its scores]",
    "whole AdamW step, 1.3 billion float32": "AdamOptimizerList[f4,whole step,model]",
}
# What a reader in a hurry looks for.
MORE_CASES = CASES | {
    "RMSNorm, 64 Mi float32 in rows of 4,096": "SimplifiedLayerNormalization[f4,4096]",
    "softmax, 64 Mi float16 in rows of 1,024": "Softmax[f2,1024]",
    "dropout with a bit mask, 64 Mi float16": "BitmaskDropout[f2]",
    "embedding's gradient, words by frequency, float32": "GatherGrad[f4,zipf]",
    "batch norm's gradient, 64 x 256 x 56 x 56 float16": "BatchNormalizationGrad[f2,64x256x56x56]",
}

# Cases that are far from the copy rate, and why.
SLOW = {
    r"GatherElementsGrad": (
        "rows are sorted within each column: counted, moved to buckets, added in order; or added "
        "by atomic additions"
    ),
    r"GatherGrad|GatherNDGrad": "launches of sorting take 17 us before the sums",
    r"GistSparse.*\[(f8|u1)": (
        "packing takes instructions; where a tile begins depends on those before it"
    ),
    r"GistGuarded.*\[f2": "the latency of a sample and of the last block; very many groups",
    r"BatchNorm.*(channels last|65536x1024)": (
        "the array is read twice, which is 67 % (gradient 60) at the most"
    ),
    r"LayerNormalizationGrad.*\[b?f2,16384": "a row fills a block, which waits at its own barriers",
    r"ConcatTraining.*4096x|SplitTraining.*4096x": "addresses go to a table by 9 or 18 launches",
    r"PadAndUnflatten": "two launches, the first of which makes a table",
}
# What the cases of a family are.
NOTES = {
    "adam": (
        "Bytes of a parameter: 28 for Adam in float32, and those of a copy. A *whole step* is "
        "GradientNorm, then AdamOptimizerList with loss scale, norm and the signal that the "
        "norm is finite: 4 + 28 bytes, beside PyTorch's 48 for GradScaler's unscaling and "
        "check, clip_grad_norm_ and fused AdamW, which its compiler refuses."
    ),
    "batch_norm": (
        "Channels that fit into the shared memory of a block (16 x 8, 14 x 14, 7 x 7 of 256 "
        "images) are read once; of a few more up to half of the rows are read again. Columns, "
        "of [65,536 x 1,024] and of images with their channels last, are read twice: without "
        "the L2 cache at most 67 % of the copy rate, 60 of the gradient."
    ),
    "cross_entropy": (
        "8,192 rows of 32,768 classes, of the losses alone and of CrossEntropyLossAndGrad "
        "131,072; `4d`: [16, 64, 128, 128]. CrossEntropyLossAndGrad over its scores takes no "
        "memory from the pool."
    ),
    "dropout": (
        "64 Mi elements, ratio 0.1; rows of 1,024 where there is a softmax. The peer of the "
        "forms with bits has bools, eight times as many bytes."
    ),
    "gist_sparse": "Half of the values are zero where nothing else is said.",
    "lamb": "LAMB writes its direction and reads it again: 28 + 12 bytes a parameter.",
    "layer_norm": "64 Mi elements, in rows of the length named.",
    "optimizer": (
        "Bytes of a parameter: 12 for gradient descent. InplaceClipGradNorm only reads here: "
        "the gradients are within the norm, and nothing is clipped."
    ),
    "pooling": "`scripts/cases/pooling.py` has the windows.",
    "softmax": "64 Mi elements, in rows of the length named.",
}


@click.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path))
def main(results: Path) -> None:
    """Take the records of RESULTS into docs/benchmark.jsonl; say which ones stay older."""
    merged, older = merge(records(RECORDS), records(results))
    RECORDS.write_text("".join(json.dumps(r) + "\n" for r in merged), encoding="utf-8")
    click.echo(f"not measured: {len(older)}" + "".join(f"\n  {name}" for name in older))


def merge(before: list[Record], after: list[Record]) -> tuple[list[Record], list[str]]:
    """The newer record of each case, and the names of cases that only `before` has.

    These name the commit of their run.
    """
    machine = after[0]
    new = {(r["kind"], r["case"]): r for r in after if r["kind"] in ("case", "eager")}
    merged, older = [machine], []
    for record in before[1:]:
        key = record["kind"], record["case"]
        if key not in new:
            older.append(record["case"])
            if before[0]["commit"] != machine["commit"]:
                record = {"commit": before[0]["commit"]} | record
        merged.append(new.pop(key, record))
    return merged + list(new.values()), older


def pages() -> dict[Path, str]:
    """A page for each family with cases, by its path."""
    measured = records(RECORDS)
    families = sorted({r["family"] for r in measured[1:]})
    return {PAGES / f"{name}.md": "\n".join(page(measured, name)) + "\n" for name in families}


def generated() -> list[Path]:
    """The pages that are there, without those written by hand."""
    return [path for path in PAGES.glob("*.md") if path.read_text("utf-8").startswith(NOTE)]


def page(measured: list[Record], family: str) -> Iterator[str]:
    """A family's tables, the machine, and rows that are of another commit."""
    yield from (NOTE, "", f"# Times of {family}", "", machine_line(measured), "")
    yield "What each column is: [method](../performance.md#method)." + (
        f" {NOTES[family]}" if family in NOTES else ""
    )
    yield ""
    yield from tables(measured, family)
    for commit, names in other_runs(measured, family).items():
        yield f"Of commit {commit}: {', '.join(names)}."


def other_runs(measured: list[Record], family: str) -> dict[str, list[str]]:
    """Names of cases by the commit of their run, where it is not the table's."""
    runs: dict[str, list[str]] = {}
    for record in measured[1:]:
        if record["family"] == family and "commit" in record:
            runs.setdefault(record["commit"], []).append(record["case"])
    return runs


def summary() -> str:
    """A row for each family: cases, means of time over floor and over the best peer, the worst."""
    measured = [r for r in records(RECORDS) if r["kind"] == "case"]
    rows = [["family", "cases", "time / floor", "time / best peer", "furthest behind a peer"]]
    rows.append(["---"] * len(rows[0]))
    for name in sorted({r["family"] for r in measured}):
        own = [r for r in measured if r["family"] == name]
        rows.append([f"[{name}](performance/{name}.md)", *figures(own)])
    return "\n".join(map(row_of, [*rows, ["**all**", *figures(measured)]]))


def slow_table() -> str:
    """A row for each group of cases in SLOW: how many, their shares of the copy rate, and why."""
    measured = [r for r in records(RECORDS) if r["kind"] == "case"]
    rows = [["cases", "of the copy rate", "why"], ["---"] * 3]
    for pattern, why in SLOW.items():
        shares = {r["case"]: r["share"] for r in measured if re.search(pattern, r["case"])}
        names = sorted(shares, key=shares.__getitem__)
        example = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        rows.append([example, f"{min(shares.values()):.0%} to {max(shares.values()):.0%}", why])
    return "\n".join(map(row_of, rows))


def figures(cases: list[Record]) -> list[str]:
    """Number of cases, their geometric means, and the one furthest behind its peer."""
    over = statistics.geometric_mean(r["ms"]["median"] / floor_of(r) for r in cases)
    beside = [r for r in cases if r["peers"]]
    if not beside:
        return [str(len(cases)), f"{over:.2f}", "", ""]
    mean = statistics.geometric_mean(r["ms"]["median"] / best(r)[1] for r in beside)
    worst = max(beside, key=lambda r: r["of_best_peer"])
    behind = f"{worst['case']} {worst['of_best_peer']:.2f}" if worst["of_best_peer"] > 1 else "none"
    return [str(len(cases)), f"{over:.2f}", f"{mean:.2f}", behind]


def best(record: Record) -> tuple[str, float]:
    """The quickest peer and its milliseconds."""
    name, times = min(record["peers"].items(), key=lambda item: item[1]["median"])
    return name, times["median"]


def short_table(cases: dict[str, str]) -> str:
    """A row for each of these cases: ours, its share of the copy rate, the best peer."""
    machine, *measured = records(RECORDS)
    by_name = {r["case"]: r for r in measured if r["kind"] == "case"}
    head = [f"{machine['gpu']}, {machine['date']}", "ms", "of the copy rate", "PyTorch", "its ms"]
    rows = [head, ["---"] * len(head)]
    for words, case in cases.items():
        record = by_name[case]
        name, ms = best(record) if record["peers"] else ("-", None)
        peer = name.removeprefix("torch").strip(" ,") or "eager"
        share = f"{record['share']:.0%}"
        rows.append(
            [words, f"{record['ms']['median']:.4f}", share, peer, f"{ms:.4f}" if ms else "-"]
        )
    return "\n".join(map(row_of, rows))


if __name__ == "__main__":
    sys.exit(main())
