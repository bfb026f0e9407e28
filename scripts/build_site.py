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

# Pages of docs with a place of their own in the navigation; all others are below docs/README.md.
APART = {"README", "cli", "first_steps", "operators", "performance"}
# What a search finds these pages by, first of all.
FOUND_BY = {
    "docs/codecs.md": ("which codec", *CODECS),
    "docs/coming_from_onnxruntime.md": ("train onnx", "training onnx", "onnx runtime"),
    "docs/stash.md": ("which policy", "compressed activations"),
}
# Links of these pages that lead to another place of the site.
ELSEWHERE = {
    r"\((?:\.\./)+examples\)": "(/examples/index.md)",
    r"\((?:\.\./)+examples/(\w+)\.py\)": r"(/examples/index.md#\1py)",
    r"\((?:\.\./)+README\.md\)": "(/index.md)",
    r"\([./\w]*first_steps\.md(#[\w-]+)?\)": r"(/index.md\1)",
}
MEASURED = "benchmark*.jsonl"  # a file for each card


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("folder", default=ROOT / "build" / "site", type=click.Path(path_type=Path))
def main(folder: Path) -> None:
    """Build the site into `folder`; a warning of Sphinx is an error."""
    with tempfile.TemporaryDirectory() as name:
        sources = Path(name)
        write(sources)
        options = ["-W", "--keep-going", "-q", "-b", "html", "-d", str(sources / "doctrees")]
        status = sphinx_build([*options, name, str(folder)])
    if status:
        raise click.ClickException("the site has warnings")
    click.echo(f"{folder / 'index.html'}: {len(list(folder.rglob('*.html')))} pages")


def write(sources: Path) -> None:
    """Write all that Sphinx reads."""
    shutil.copytree(ROOT / "site", sources, dirs_exist_ok=True)
    shutil.copytree(ROOT / "docs", sources / "docs")
    tour = sources / "tour_source"
    shutil.copytree(ROOT / "examples" / "onnx_digits", tour / "examples" / "onnx_digits")
    shutil.copy(ROOT / "examples" / "tour.py", tour)
    pages = operator_pages.pages() | api_pages.generated() | {"examples/index.md": examples()}
    for path in written_pages():
        name = path.relative_to(ROOT).as_posix()
        pages[name] = staged(path, name)
    first = re.sub(r"\]\((?=\w+\.\w+)", "](docs/", pages.pop("docs/first_steps.md"))
    first = first.replace("](../", "](")  # a folder higher
    index = (sources / "index.md").read_text("utf-8")
    pages["index.md"] = index.replace("<!-- docs/first_steps.md -->", first.partition("\n")[2])
    (sources / "docs" / "first_steps.md").unlink()
    for name, text in pages.items():
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        (sources / name).write_text(text, "utf-8")
        copy_linked(text, Path(name).parent, sources)
    (sources / "_static" / "measured.js").write_text(f"const MEASURED = {measured()};\n", "utf-8")


def written_pages() -> list[Path]:
    """Return the pages of the repository that are on the site, but for its README."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "examples").glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(set(pages) - {ROOT / "README.md"})


def staged(path: Path, name: str) -> str:
    """Return a page with its place in the navigation, and what it is found by."""
    text = path.read_text("utf-8")
    for link, target in ELSEWHERE.items():
        text = re.sub(link, target, text)
    if name in FOUND_BY:
        title, _, rest = text.partition("\n")
        text = f"{title}\n\n{operator_pages.index_entries(*FOUND_BY[name])}\n{rest}"
    if pages := below(name):
        lines = "\n".join(f"/{page}" for page in pages)
        text += f"\n```{{toctree}}\n:hidden:\n{lines}\n```\n"
    return text


def below(name: str) -> list[str]:
    """Return the pages below one in the navigation, as Sphinx names them."""
    names = [path.relative_to(ROOT).with_suffix("").as_posix() for path in written_pages()]
    if name == "docs/README.md":
        text = (ROOT / name).read_text("utf-8")
        listed = [each for each in re.findall(r"\]\((\w+)\.md\)", text) if each not in APART]
        outside = [each for each in names if not each.startswith("docs/")]
        return [*(f"docs/{each}" for each in dict.fromkeys(listed)), "examples/index", *outside]
    if name == "docs/performance.md":
        return [each for each in names if each.startswith("docs/performance/")]
    pages = {
        "docs/operators.md": [f"operators/{family}/index" for family in FAMILIES],
        "docs/cli.md": ["cli/commands"],
    }
    return pages.get(name, [])


def copy_linked(text: str, folder: Path, sources: Path) -> None:
    """Copy what a page links to and is no page, such as scripts."""
    for target in re.findall(r"\]\((?![a-z]+:|#|/)([^)#]+)", text):
        path = (ROOT / folder / target).resolve()
        place = sources / path.relative_to(ROOT) if path.is_relative_to(ROOT) else sources
        if path.is_file() and not place.exists() and path.suffix != ".md":
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)


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
