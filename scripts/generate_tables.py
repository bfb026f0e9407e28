# SPDX-License-Identifier: MIT
"""The generated parts of the documents: tables between their marks, and the operators' pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import click
import operator_pages
import upstream_schemas

from cupy_training_ops import CODECS
from cupy_training_ops.registry import FAMILIES

PAGES = ROOT / "docs" / "operators"
MARKED = (
    "README.md",
    "docs/operators.md",
    "docs/codecs.md",
    "docs/coming_from_onnxruntime.md",
    "docs/differences.md",
)


@click.command()
@click.option("--check", is_flag=True, help="Only say what is not up to date.")
def main(check: bool) -> None:
    """Rewrite what is generated of README.md and docs."""
    wanted = texts()
    stale = [p for p, text in wanted.items() if not p.is_file() or p.read_text("utf-8") != text]
    strange = set(PAGES.glob("*.md")) - wanted.keys()
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
    """Each document with every generated part made anew."""
    found = {ROOT / name: updated((ROOT / name).read_text("utf-8")) for name in MARKED}
    return found | {PAGES / f"{name}.md": operator_pages.page(name) for name in FAMILIES}


def updated(text: str) -> str:
    """The text with what stands between marks made anew."""

    def part(match: re.Match[str]) -> str:
        return f"{match[1]}\n{PARTS[match[2]]()}\n<!-- end -->"

    return re.sub(r"(<!-- generated: (\w+) -->).*?<!-- end -->", part, text, flags=re.DOTALL)


def codec_table() -> str:
    """One row a codec: formula, bits a value, error bound."""
    rows = [
        [f"`{codec.name}`", codec.formula, f"{codec.bits:.4g}", codec.bound]
        for codec in CODECS.values()
    ]
    head = ["| codec | formula | bits | error at most |", "|---|---|---|---|"]
    return "\n".join([*head, *map(operator_pages.row_of, rows)])


# The README's cases, each with its row's name in docs/performance.md.
CASES = {
    "`msfp15`, encoding 64 Mi float32": "GistPackMsfp15Encoder[f4]",
    "`pack8`, decoding 64 Mi float32": "GistPack8Decoder[f4]",
    "LayerNorm's gradient, 64 Mi float16": "LayerNormalizationGrad[f2,1024]",
    "cross-entropy and gradient, 8,192 x 131,072": "CrossEntropyLossAndGrad[bf2,over its scores]",
    "whole AdamW step, 1.3 billion float32": "AdamOptimizerList[f4,whole step,model]",
}


def speed_table() -> str:
    """Five rows of docs/performance.md, with GPU and dates."""
    text = (ROOT / "docs" / "performance.md").read_text("utf-8")
    method = text.partition("\n## ")[0]
    (gpu,) = re.findall(r"^(NVIDIA \w+), driver", method, re.MULTILINE)
    days = re.findall(r"\d{4}-\d\d-\d\d", method)
    span = " to ".join(sorted({min(days), max(days)}))
    head = [f"{gpu}, {span}", "ms", "of the copy rate", "PyTorch", "its ms"]
    rows = [
        head,
        ["---"] * len(head),
        *([name, *figures(text, case)] for name, case in CASES.items()),
    ]
    return "\n".join(map(operator_pages.row_of, rows))


def figures(text: str, case: str) -> list[str]:
    """Time, share of the copy rate, peer and its time, of a row."""
    row = re.search(rf"^\| {re.escape(case)} \|(.*)\|$", text, re.MULTILINE)
    if row is None:
        raise click.ClickException(f"docs/performance.md: no row {case}")
    _, _, ms, share, peer, theirs, _ = (cell.strip(" *") for cell in row[1].split("|"))
    return [ms.split()[0], share, peer.removeprefix("torch").strip(" ,") or "-", theirs or "-"]


PARTS = {
    "speed": speed_table,
    "codecs": codec_table,
    "declarations": upstream_schemas.table,
    "coverage": lambda: "\n".join(operator_pages.coverage()),
    "names": lambda: "\n".join(operator_pages.names_upstream()),
    "operators": operator_pages.index,
}


if __name__ == "__main__":
    main()
