# SPDX-License-Identifier: MIT
"""Pages that are made for the site, before a generator reads them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import operator_pages
import pytest

from cupy_training_ops import registry

ROOT = Path(__file__).resolve().parents[2]


def test_every_operator_has_a_page_with_an_example_and_its_signature() -> None:
    pages = operator_pages.pages()
    index = (ROOT / "docs" / "operators.md").read_text("utf-8")
    for family, names in registry.FAMILIES.items():
        assert f"# {family.replace('_', ' ').capitalize()}" in pages[f"operators/{family}/index.md"]
        for name in names:
            page = pages[operator_pages.path_of(family, name)]
            function = registry.get_op(name).function_name
            called = rf"(cto\.{function}|{name})\("
            assert re.search(rf"```python\n(?:(?!```).)*{called}", page, re.DOTALL), name
            assert f"{{py:function}} {function}(" in page
            assert f"{{py:class}} {name}(" in page
            assert f"| `{name}` | `{function}` |" in index


def test_pages_of_operators_are_in_no_folder_of_docs() -> None:
    """They are made with the site; a copy in the repository would have to be kept in step."""
    assert not (ROOT / "docs" / "operators").exists()


@pytest.mark.thorough
def test_the_tour_is_a_script_too() -> None:
    pytest.importorskip("onnx", reason="its last part trains an ONNX model")
    command = [sys.executable, str(ROOT / "examples" / "tour.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    first, last = re.findall(r"loss ([\d.]+) to ([\d.]+)", result.stdout)[0]
    assert float(last) < 0.1 < float(first)


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("a * b and <c>, `*args`, _private, x_1", r"a \* b and \<c>, `*args`, \_private, x_1"),
        ("one\n\n    x = y * z\n\ntwo", "one\n\n    x = y * z\n\ntwo"),
    ],
)
def test_docstrings_are_shown_as_they_are_written(text, markdown) -> None:
    assert operator_pages.docstring(text) == markdown


def test_signatures_are_those_of_the_source() -> None:
    griffe = pytest.importorskip("griffe", reason="the site is made with the extra docs")
    import api_pages

    source = """
def f(a, /, b: int, c: str = "x", *rest: int, d: float = 1.5, **more: object) -> list[int]: ...
class C:
    def __init__(self, a: int, *, b: None = None) -> None: ...
"""
    with griffe.temporary_visited_module(source) as module:
        assert api_pages.signature(module["f"]) == (
            "(a, /, b: int, c: str = 'x', *rest: int, d: float = 1.5, **more: object) -> list[int]"
        )
        assert api_pages.constructor(module["C"]) == "(a: int, *, b: None = None)"


def test_names_of_every_module_are_known_without_importing_it() -> None:
    pytest.importorskip("torch", reason="PyTorch is in no extra; CI tests with it apart")
    griffe = pytest.importorskip("griffe", reason="the site is made with the extra docs")
    import importlib

    import api_pages

    package = griffe.load(api_pages.PACKAGE, search_paths=[ROOT])
    for name in api_pages.MODULES:
        module = importlib.import_module(name)
        if name == f"{api_pages.PACKAGE}.torch.ops":
            listed = [text.partition("(")[0] for text in api_pages.SCHEMAS.read_text().splitlines()]
            assert ["DOORS", *listed] == module.__all__, "run scripts/generate_tables.py"
            schemas = [door.operator.schema for door in module.DOORS.values()]
            assert api_pages.SCHEMAS.read_text("utf-8").splitlines() == schemas
        else:
            read = package[name.removeprefix(f"{api_pages.PACKAGE}.")] if "." in name else package
            assert sorted(api_pages.public(read)) == sorted(module.__all__)
