# SPDX-License-Identifier: MIT
"""Snippets of documents: run, and what they print written beside them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import snippets
from click.testing import CliRunner

# What people read first; all others are checked by the thorough tests.
FIRST = ("README", "interop", "training")
PAGES = [path for path in snippets.documents() if path.suffix == ".md"]


def assert_true(*paths: Path) -> None:
    """A process of its own: snippets register functions, start threads, import what is there."""
    command = [sys.executable, snippets.__file__, "--check", *map(str, paths)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=str(path.relative_to(snippets.ROOT)), marks=marks)
        for path in PAGES
        for marks in [() if path.stem in FIRST else pytest.mark.thorough]
    ],
)
def test_pages_show_what_is_printed(path) -> None:
    assert_true(path)


@pytest.mark.thorough
def test_the_operators_examples_show_what_is_printed() -> None:
    assert_true(*(path for path in snippets.documents() if path.suffix == ".py"))


PAGE = """# A page

```python
x = 2  # a remark
print(x)  # 3
for i in range(2):
    print(i)
# > 5
# a remark
```

```python
# said.py
print("said")
```

```console
$ python said.py && echo and "$COLUMNS"
nothing
$ false
```

```text
print(1)  # 2
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_outputs_are_written_beside_and_below(page) -> None:
    text = snippets.updated(page)
    assert "x = 2  # a remark\nprint(x)  # 2\n" in text
    assert "    print(i)\n# > 0\n# > 1\n# a remark\n```" in text
    assert '# said.py\nprint("said")\n```' in text
    assert '"$COLUMNS"\nsaid\nand 80\n$ false\n```' in text
    assert "```text\nprint(1)  # 2\n```" in text


def test_the_second_time_changes_nothing(page) -> None:
    page.write_text(snippets.updated(page))
    assert snippets.updated(page) == page.read_text()


def test_check_names_what_is_stale_and_writes_nothing(page) -> None:
    result = CliRunner().invoke(snippets.main, ["--check", str(page)])
    assert result.exit_code == 1
    assert "-print(x)  # 3\n+print(x)  # 2" in result.output
    assert page.read_text() == PAGE
    assert CliRunner().invoke(snippets.main, [str(page)]).exit_code == 0
    assert CliRunner().invoke(snippets.main, ["--check", str(page)]).exit_code == 0


def test_cells_have_names_of_their_own(tmp_path) -> None:
    path = tmp_path / "cells.py"
    path.write_text("y = 1\n\n# %% A\nx = y\nprint(x)\n\n# %% B\nprint('x' in dir(), y)\n")
    assert snippets.updated(path).endswith(
        "print(x)  # 1\n\n# %% B\nprint('x' in dir(), y)  # False 1\n"
    )


def test_what_cannot_be_imported_is_left_as_it_is(page, monkeypatch, capsys) -> None:
    monkeypatch.setattr(snippets, "NEEDED", ("not_there",))
    page.write_text("```python\nimport not_there\nprint(1)  # 2\n```\n")
    assert snippets.updated(page) == page.read_text()
    assert "not run: not_there is not installed" in capsys.readouterr().err


def test_an_error_or_a_warning_is_no_output(page) -> None:
    for code in ("1 / 0", "import numpy\nnumpy.log(0)"):
        page.write_text(f"```python\n{code}\n```\n")
        with pytest.raises((ZeroDivisionError, RuntimeWarning)):
            snippets.updated(page)
