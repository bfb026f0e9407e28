# SPDX-License-Identifier: MIT
"""What the documents say is what the package does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cupy_training_ops.testing.compare import TOLERANCE

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_what_is_generated_is_up_to_date_and_checking_writes_nothing() -> None:
    path = ROOT / "README.md"
    before = path.stat()
    command = [sys.executable, str(ROOT / "scripts" / "generate_tables.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


def test_the_tolerances_are_those_of_the_comparison() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"\n## Tolerances\n(.*?)\n## ", text, flags=re.DOTALL)
    rows = re.findall(r"\| (\w*float\d+) \| (\S+) \|", section)
    assert {dtype: float(tolerance) for dtype, tolerance in rows} == TOLERANCE


def test_the_readme_is_short_and_its_links_are_relative() -> None:
    """hatch_build.py makes them absolute; test_links_lead_somewhere follows them."""
    assert README.count("\n") <= 120
    links = re.findall(r"\]\(([^)]*)\)", README)
    assert len(links) > 10
    assert [link for link in links if re.match(r"\w+:|/|#", link)] == []


def test_figures_of_the_readme_stand_in_the_pages_it_cites() -> None:
    """Those with a decimal point, outside of code; a section without pages has none measured."""
    checked = 0
    for section in re.sub(r"```.*?```", "", README, flags=re.DOTALL).split("\n## "):
        names = re.findall(r"docs/\w+\.md", section)
        text = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in names)
        figures = re.findall(r"(?<![\w.,])\d[\d,]*\.\d+", section) if names else []
        checked += len(figures)
        results = [re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", text) for figure in figures]
        assert [f for f, place in zip(figures, results, strict=True) if not place] == []
    assert checked > 20


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages <= set(re.findall(r"\]\((\w+\.md)\)", index))


def test_each_figure_and_file_of_figures_is_linked_by_a_page() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    linked = {
        (page.parent / target).resolve()
        for page in pages
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8"))
    }
    beside = {path for path in (ROOT / "docs").rglob("*.*") if path.suffix != ".md"}
    assert {path.name for path in beside - linked} == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)", document.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (document.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_into_documents_lead_to_a_heading(document: Path) -> None:
    for target, anchor in re.findall(
        r"\]\((?!http)([^)#]+)#([^)]+)\)", document.read_text(encoding="utf-8")
    ):
        headings = re.findall(
            r"^#+ (.*)$", (document.parent / target).read_text(encoding="utf-8"), flags=re.MULTILINE
        )
        assert anchor in [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_modules_that_are_named_exist(document: Path) -> None:
    named = re.findall(r"`([a-z_/]+\.py)`", document.read_text(encoding="utf-8"))
    folders = (ROOT, ROOT / "cupy_training_ops")
    assert [
        path for path in named if not any((folder / path).is_file() for folder in folders)
    ] == []
