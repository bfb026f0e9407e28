# SPDX-License-Identifier: MIT
"""Tables of what scripts/benchmark.py measured.

    python scripts/benchmark_report.py FILE           prints them
    python scripts/benchmark_report.py --take FILE    takes its records into docs/benchmark.jsonl

The second puts them in place of older ones of the same cases; scripts/generate_tables.py writes the
tables of docs/performance.md and docs/performance/ from there.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from markdown_table import table

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "docs" / "benchmark.jsonl"
PAGES = ROOT / "docs" / "performance"
NOTE = "<!-- written by scripts/generate_tables.py from docs/benchmark.jsonl -->"
N_WORST = 5
EAGER_COLUMNS = ("ms (p20, p80)", "peer", "its ms", "ours / its")
COLUMNS = (
    "case",
    "floor ms",
    "read twice",
    "aim ms",
    "ms (p20, p80)",
    "of copy rate",
    *EAGER_COLUMNS[1:],
)
Record = dict[str, Any]
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


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--family", help="Only this family's cases.")
@click.option("--take", is_flag=True, help="Take FILE's records into docs/benchmark.jsonl.")
def main(file: Path, family: str | None, take: bool) -> None:
    """Print the tables of FILE; or take its records, and say which ones stay older."""
    results = records(file)
    if not take:
        click.echo("\n".join(single(results, family)))
        return
    merged, older = merge(records(RECORDS), results)
    RECORDS.write_text("".join(json.dumps(r) + "\n" for r in merged), encoding="utf-8")
    click.echo(f"not measured: {len(older)}" + "".join(f"\n  {name}" for name in older))


def records(path: Path) -> list[Record]:
    """Read the JSON lines of a result file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def cases(results: list[Record], family: str | None = None, kind: str = "case") -> list[Record]:
    """Return records of this kind, "case" or "eager", of one family or of all."""
    return [r for r in results if r["kind"] == kind and (family or r["family"]) == r["family"]]


def single(results: list[Record], family: str | None) -> Iterator[str]:
    """Yield the lines of a result file's tables, and why peers are left out."""
    yield machine_line(results)
    yield ""
    yield from means(cases(results, family))
    yield from tables(results, family)
    for r in cases(results, family):
        for name, reason in r.get("left_out", {}).items():
            yield f"* {r['case']}: {name} is left out: {reason}"


def tables(results: list[Record], family: str | None) -> Iterator[str]:
    """Yield a table of times beside aim, copy rate and best peer of each case, then one of eager
    calls, outside a graph, the host's time included."""
    captured = cases(results, family)
    if captured:
        columns = [c for c in COLUMNS if any(cells(r)[c] for r in captured)]
        yield table(columns, ([cells(r)[c] for c in columns] for r in captured))
        yield ""
    if eager := cases(results, family, "eager"):
        columns = ["case, called eagerly", *EAGER_COLUMNS]
        yield table(columns, ([r["case"], *map(cells(r).get, EAGER_COLUMNS)] for r in eager))
        yield ""


def means(results: list[Record]) -> Iterator[str]:
    """Yield lines with the mean of time over floor, and the cases furthest behind a peer."""
    over = [r["ms"]["median"] / floor_of(r) for r in results if r["family"] != "conv"]
    if over:
        mean = statistics.geometric_mean(over)
        yield f"Time over floor without convolutions, geometric mean of {len(over)}: {mean:.3f}"
    beside = sorted((r for r in results if r["peers"]), key=lambda r: -r["of_best_peer"])
    worst = ", ".join(f"{r['case']} {r['of_best_peer']:.2f}" for r in beside[:N_WORST])
    yield f"Furthest behind their best peers: {worst or 'none'}"
    yield ""


def floor_of(r: Record) -> float:
    """Return the milliseconds of the bytes that must move, with those that are read twice."""
    floor: float = r.get("floor_again_ms", r["floor_ms"])
    return floor


def machine_line(results: list[Record]) -> str:
    """Return a line with GPU, versions, commit, date and copy rate of a run."""
    m = results[0]
    liger = f"Liger-Kernel {m['liger']}, " if m.get("liger") else ""
    return (
        f"{m['gpu']}, driver {m['driver']}, CUDA {m['cuda']}, CuPy {m['cupy']}, "
        f"PyTorch {m['torch']}, {liger}commit {m['commit']}, {m['date']}; "
        f"copy rate {m['copy_gb_per_s']:.0f} GB/s"
    )


def cells(r: Record) -> dict[str, str]:
    """Return {column: cell} of a record; times beyond the aim or behind a peer are bold."""
    filled = dict.fromkeys(COLUMNS, "") | {"case": r["case"], "ms (p20, p80)": times(r["ms"])}
    if r["kind"] == "case":
        filled |= {
            "floor ms": f"{r['floor_ms']:.4f}",
            "read twice": f"{r['floor_again_ms']:.4f}" if "floor_again_ms" in r else "",
            "aim ms": f"{r['aim_ms']:.4f}",
            "ms (p20, p80)": bold(times(r["ms"]), r["ms"]["median"] > r["aim_ms"]),
            "of copy rate": f"{r['share']:.0%}",
        }
    if r["peers"]:
        name, ms = best(r)
        ratio = bold(f"{r['of_best_peer']:.2f}", r["of_best_peer"] > 1.03)
        filled |= {"peer": name, "its ms": f"{ms:.4f}", "ours / its": ratio}
    return filled


def times(ms: Record) -> str:
    """Return "median (p20, p80)" in milliseconds."""
    return f"{ms['median']:.4f} ({ms['p20']:.4f}, {ms['p80']:.4f})"


def best(record: Record) -> tuple[str, float]:
    """Return (name of the quickest peer, its median in milliseconds)."""
    name, ms = min(record["peers"].items(), key=lambda item: item[1]["median"])
    return name, ms["median"]


def bold(text: str, marked: bool) -> str:
    """Text, in bold where marked."""
    return f"**{text}**" if marked else text


# ---- the documents -------------------------------------------------------------------------------


def merge(before: list[Record], after: list[Record]) -> tuple[list[Record], list[str]]:
    """Return (the newer record of each case, names of cases that only `before` has).

    The latter's records get a field with the commit of their run.
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
    """Return {path: text} of a page for each family with cases."""
    measured = records(RECORDS)
    families = sorted({r["family"] for r in measured[1:]})
    return {PAGES / f"{name}.md": "\n".join(page(measured, name)) + "\n" for name in families}


def generated() -> list[Path]:
    """Return the paths of generated pages that exist."""
    return [path for path in PAGES.glob("*.md") if path.read_text("utf-8").startswith(NOTE)]


def page(measured: list[Record], family: str) -> Iterator[str]:
    """Yield the lines of a family's page: tables, the machine, and rows of another commit."""
    yield from (NOTE, "", f"# Times of {family}", "", *answer(cases(measured, family)), "")
    yield from (machine_line(measured), "")
    yield "What each column is: [method](../performance.md#method)." + (
        f" {NOTES[family]}" if family in NOTES else ""
    )
    yield ""
    yield from tables(measured, family)
    for commit, names in other_runs(measured, family).items():
        yield f"Of commit {commit}: {', '.join(names)}."


def answer(measured: list[Record]) -> Iterator[str]:
    """Yield sentences: how near the rate of a copy a family is, and how far from peers."""
    n, over, beside, behind = figures(measured)
    yield (
        f"Are these kernels fast? {n} cases take {over} of the time of a copy of the same bytes"
        + (f", and {beside} of the quickest peer's time" if beside else "")
        + " (geometric means)."
    )
    if beside:
        yield (
            "No case is behind its peer."
            if behind == "none"
            else f"Furthest behind its peer, as our time over its: {behind}."
        )


def other_runs(measured: list[Record], family: str) -> dict[str, list[str]]:
    """Return {commit: names of cases} of runs that are not the table's."""
    runs: dict[str, list[str]] = {}
    for record in measured[1:]:
        if record["family"] == family and "commit" in record:
            runs.setdefault(record["commit"], []).append(record["case"])
    return runs


def summary() -> str:
    """Return a table of families: cases, means of time over floor and over the best peer, the
    worst."""
    measured = cases(records(RECORDS))
    rows = []
    for name in sorted({r["family"] for r in measured}):
        rows.append([f"[{name}](performance/{name}.md)", *figures(cases(measured, name))])
    head = ("family", "cases", "time / floor", "time / best peer", "furthest behind a peer")
    return table(head, [*rows, ["**all**", *figures(measured)]])


def slow_table() -> str:
    """Return a table of the groups of cases in SLOW: how many, shares of the copy rate, why."""
    rows = []
    for pattern, why in SLOW.items():
        results = [r for r in cases(records(RECORDS)) if re.search(pattern, r["case"])]
        names = [r["case"] for r in sorted(results, key=lambda r: r["share"])]
        shares = [r["share"] for r in results]
        example = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        rows.append([example, f"{min(shares):.0%} to {max(shares):.0%}", why])
    return table(("cases", "of the copy rate", "why"), rows)


def figures(measured: list[Record]) -> list[str]:
    """Return cells: number of cases, geometric means of time over floor and over the best peer's,
    the case furthest behind its peer."""
    over = statistics.geometric_mean(r["ms"]["median"] / floor_of(r) for r in measured)
    beside = [r for r in measured if r["peers"]]
    if not beside:
        return [str(len(measured)), f"{over:.2f}", "", ""]
    mean = statistics.geometric_mean(r["ms"]["median"] / best(r)[1] for r in beside)
    worst = max(beside, key=lambda r: r["of_best_peer"])
    behind = f"{worst['case']} {worst['of_best_peer']:.2f}" if worst["of_best_peer"] > 1 else "none"
    return [str(len(measured)), f"{over:.2f}", f"{mean:.2f}", behind]


def short_table(chosen: dict[str, str]) -> str:
    """Return a table of cases, {row's name: case}: ours, share of the copy rate, the best peer."""
    measured = records(RECORDS)
    by_name = {r["case"]: r for r in cases(measured)}
    rows = []
    for words, case in chosen.items():
        record = by_name[case]
        name, ms = best(record) if record["peers"] else ("-", None)
        peer = name.removeprefix("torch").strip(" ,") or "eager"
        rows.append([
            words, f"{record['ms']['median']:.4f}", f"{record['share']:.0%}",
            peer, f"{ms:.4f}" if ms else "-",
        ])  # fmt: skip
    machine = measured[0]
    head = (f"{machine['gpu']}, {machine['date']}", "ms", "of the copy rate", "PyTorch", "its ms")
    return table(head, rows)


if __name__ == "__main__":
    sys.exit(main())
