# SPDX-License-Identifier: MIT
"""Build the documentation site, which needs the extra `docs`.

    python scripts/build_site.py [FOLDER]

Pages of docs, pages that are made of the package, and those of site/ come together in a folder of
sources, from which Sphinx makes FOLDER (build/site), where a warning is an error. index.html there
opens without a server; its search works without a network.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import api_pages
import benchmark_report
import click
import operator_pages
from sphinx.cmd.build import main as sphinx_build

from cupy_training_ops import CODECS
from cupy_training_ops.registry import FAMILIES

# Pages below others in the navigation, in addition to what site/index.md names.
BELOW = {
    "docs/README.md": (
        "docs/recipes", "docs/training", "docs/codecs", "docs/stash", "docs/gist", "docs/interop",
        "docs/coming_from_onnxruntime", "docs/coming_from_pytorch", "docs/differences",
        "docs/adding_an_operator", "docs/architecture", "docs/tuning", "examples/index",
        "examples/shell", "CHANGELOG",
    ),
    "docs/operators.md": tuple(f"operators/{name}/index" for name in FAMILIES),
    "docs/cli.md": ("cli/commands",),
    "docs/performance.md": tuple(
        f"docs/performance/{path.stem}"
        for path in sorted((ROOT / "docs" / "performance").glob("*.md"))
    ),
}  # fmt: skip
# What a search finds these pages by, first of all.
FOUND_BY = {
    "docs/codecs.md": ("which codec", *CODECS),
    "docs/coming_from_onnxruntime.md": ("train onnx", "training onnx", "onnx runtime"),
    "docs/stash.md": ("which policy", "compressed activations"),
}
# Links of these pages that lead to another place of the site.
ELSEWHERE = {
    r"\(\.\./examples\)": "(../examples/index.md)",
    r"\(\.\./examples/(\w+)\.py\)": r"(../examples/index.md#\1py)",
    r"\(first_steps\.md\)": "(../index.md)",
}
COPIED = {
    "CHANGELOG.md": "CHANGELOG.md",
    "examples/shell.md": "examples/shell.md",
    "examples/tour.py": "tour_source/tour.py",
    "scripts/train_data_parallel.py": "scripts/train_data_parallel.py",
    "scripts/train_digits.py": "scripts/train_digits.py",
}
MEASURED = "benchmark*.jsonl"  # a file for each card


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("folder", default=ROOT / "build" / "site", type=click.Path(path_type=Path))
def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        sources = Path(name)
        write(sources)
        status = sphinx_build(["-W", "--keep-going", "-q", "-b", "html", name, str(folder)])
    if status:
        raise click.ClickException("the site has warnings")
    click.echo(f"{folder / 'index.html'}: {len(list(folder.rglob('*.html')))} pages")


def write(sources: Path) -> None:
    """Write all that Sphinx reads."""
    shutil.copytree(ROOT / "site", sources, dirs_exist_ok=True)
    shutil.copytree(ROOT / "docs", sources / "docs")
    shutil.copytree(ROOT / "examples" / "onnx_digits", sources / "tour_source/examples/onnx_digits")
    for name, place in COPIED.items():
        (sources / place).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, sources / place)
    first = (sources / "docs" / "first_steps.md").read_text("utf-8").partition("\n")[2]
    start = sources / "index.md"
    linked = re.sub(r"\]\((?=\w+\.md)", "](docs/", first)
    start.write_text(start.read_text("utf-8").replace("<!-- docs/first_steps.md -->", linked))
    (sources / "docs" / "first_steps.md").unlink()
    for page in (sources / "docs").rglob("*.md"):
        page.write_text(staged(page.relative_to(sources).as_posix(), page.read_text("utf-8")))
    made = operator_pages.pages() | api_pages.generated() | {"examples/index.md": examples()}
    for name, text in made.items():
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        (sources / name).write_text(text, "utf-8")
    (sources / "_static" / "measured.js").write_text(f"const MEASURED = {measured()};\n", "utf-8")


def staged(name: str, text: str) -> str:
    """Return a page of docs with its place in the navigation, and what it is found by."""
    for link, target in ELSEWHERE.items():
        text = re.sub(link, target, text)
    if name in FOUND_BY:
        title, _, rest = text.partition("\n")
        text = f"{title}\n\n{operator_pages.index_entries(*FOUND_BY[name])}\n{rest}"
    if name in BELOW:
        pages = "\n".join(f"/{page}" for page in BELOW[name])
        text += f"\n```{{toctree}}\n:hidden:\n{pages}\n```\n"
    return text


def examples() -> str:
    """Return the page of scripts: each with its first paragraph and its text."""
    parts = ["# Examples\n\nScripts of the folder `examples`."]
    for path in sorted((ROOT / "examples").glob("*.py")):
        _, _, text = path.read_text("utf-8").partition("\n")
        parts.append(f"## {path.name}\n\n`````python\n{text}`````")
    return "\n\n".join(parts) + "\n"


def measured() -> str:
    """Return what the committed files say of kernels and of ways to train, as JSON."""
    folder = ROOT / "docs"
    kernels = [run for path in sorted(folder.glob(MEASURED)) for run in runs(path)]
    shown = {"kernel": kernels, "training": [*runs(folder / "memory_map.jsonl")]}
    return json.dumps(shown, separators=(",", ":"))


def runs(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of each run in a file, with its card."""
    run: dict[str, Any] = {}
    for record in benchmark_report.records(path):
        if record["kind"] in ("machine", "about"):
            if run:
                yield run
            run = {"card": record["gpu"], "rows": []}
        elif record["kind"] in ("case", "eager", "row"):
            run["rows"].append(record)
    yield run


if __name__ == "__main__":
    main()
