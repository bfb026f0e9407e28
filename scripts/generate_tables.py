# SPDX-License-Identifier: MIT
"""The generated parts of the documents: tables between their marks, and pages of measured times."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import benchmark_report
import click
import operator_pages
import upstream_schemas
from markdown_table import table

import cupy_training_ops as cto

SCHEMAS = ROOT / "site" / "torch_operators.txt"
MARKED = (
    "README.md",
    "docs/operators.md",
    "docs/codecs.md",
    "docs/coming_from_onnxruntime.md",
    "docs/differences.md",
    "docs/performance.md",
)


@click.command()
@click.option("--check", is_flag=True, help="Only say what is not up to date.")
def main(check: bool) -> None:
    """Rewrite what is generated of README.md and docs."""
    wanted = texts()
    stale = [p for p, text in wanted.items() if not p.is_file() or p.read_text("utf-8") != text]
    strange = set(benchmark_report.generated()) - wanted.keys()
    if check and (stale or strange):
        listed = ", ".join(sorted(str(path.relative_to(ROOT)) for path in (*stale, *strange)))
        raise click.ClickException(f"stale: {listed}: run scripts/generate_tables.py")
    if not check:
        for path in strange:
            path.unlink()
        for path in stale:
            path.parent.mkdir(exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")


def texts() -> dict[Path, str]:
    """Return {path: text} of each document, with its generated parts as they should be now."""
    marked = {ROOT / name: updated((ROOT / name).read_text("utf-8")) for name in MARKED}
    return marked | benchmark_report.pages() | torch_operators()


def torch_operators() -> dict[Path, str]:
    """Return the schemas of PyTorch's operators, which the site shows, if PyTorch is installed."""
    if not importlib.util.find_spec("torch"):
        return {}
    doors = cto.torch.ops.DOORS.values()
    return {SCHEMAS: "".join(f"{door.operator.schema}\n" for door in doors)}


def updated(text: str) -> str:
    """Return a document's text with what stands between marks generated again."""

    def part(match: re.Match[str]) -> str:
        return f"{match[1]}\n{PARTS[match[2]]()}\n<!-- end -->"

    return re.sub(r"(<!-- generated: (\w+) -->).*?<!-- end -->", part, text, flags=re.DOTALL)


def codec_table() -> str:
    """Return a table with a row for each codec: formula, bits a value, error bound."""
    rows = [
        [f"`{codec.name}`", codec.formula, f"{codec.bits:.4g}", codec.bound]
        for codec in cto.CODECS.values()
    ]
    return table(("codec", "formula", "bits", "error at most"), rows)


PARTS = {
    "speed": lambda: benchmark_report.short_table(benchmark_report.CASES),
    "times": lambda: benchmark_report.short_table(benchmark_report.MORE_CASES),
    "families": benchmark_report.summary,
    "slow": benchmark_report.slow_table,
    "codecs": codec_table,
    "declarations": upstream_schemas.declarations,
    "coverage": operator_pages.coverage,
    "names": operator_pages.names_upstream,
    "operators": operator_pages.index,
}


if __name__ == "__main__":
    main()
