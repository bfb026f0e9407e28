# SPDX-License-Identifier: MIT
"""Words of the package: docstrings begin with a verb or a noun."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import cupy_training_ops

PACKAGE = Path(cupy_training_ops.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
OPENING = re.compile(r"(What|Whether|Of|Those|That of|The same|By|It|Everything)\b")
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def openings(text: str) -> list[str]:
    """First lines of docstrings that have to be read to their end to know what is described."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, DOCUMENTED)]
    docstrings = [ast.get_docstring(node) or "" for node in nodes]
    return [doc.partition("\n")[0] for doc in docstrings if OPENING.match(doc)]


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    wrong = {path: openings(path.read_text("utf-8")) for path in MODULES}
    assert {str(path.relative_to(PACKAGE)): lines for path, lines in wrong.items() if lines} == {}


@pytest.mark.parametrize(
    "opening",
    [
        "What it is.",
        "Whether it is.",
        "Of a row.",
        "Those of a row.",
        "The same of a row.",
        "By rows.",
    ],
)
def test_other_docstrings_are_noticed(opening) -> None:
    assert openings(f'def f():\n    """{opening}"""\n') == [opening]
    assert openings('"""Return what it is."""\n') == []
