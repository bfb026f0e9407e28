# SPDX-License-Identifier: MIT
"""Run what documents and examples show, and write what it prints beside it.

    python scripts/snippets.py                    every document, in place
    python scripts/snippets.py --check README.md  only say what is no longer true

In a document a block of `python` runs by itself, in a folder that all blocks share; where its first
line names a file (`# sum.py`), it is that file instead. A block of `console` holds commands behind
`$` and what they print, in that folder, which has links to examples, scripts and tests. In a file
of Python each part behind `# %%` runs by itself, after what stands before the first. What a
statement prints stands in comments: at its end where it is one line that fits, else below, behind
`# >`. A remark stands above it.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib.util
import io
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import click
import numpy as np

from cupy_training_ops.call.backends import why_no_gpu

BLOCK = re.compile(r"(?<=^```)(python|console)\n(.*?)(?=^```)", re.MULTILINE | re.DOTALL)
CELL = re.compile(r"^# %%.*\n", re.MULTILINE)
FILE = re.compile(r"# ([\w.]+\.py)\n")
NEEDED = ("torch", "triton", "cupy", "sklearn")  # what a snippet may import that may not be there
OUTPUT = "# >"  # before a line that is printed
WIDTH = 100


def documents() -> list[Path]:
    """Return the paths of documents and examples that show what they print."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.md")]
    pages = [page for page in pages if page.stem != "adding_an_operator"]  # its are parts of files
    shown = [page for page in pages if BLOCK.search(page.read_text(encoding="utf-8"))]
    return [*sorted(shown), *sorted((ROOT / "examples" / "operators").glob("*.py"))]


def updated(path: Path) -> str:
    """Return the text of a document with what its snippets print now."""
    text = path.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name in ("examples", "scripts", "tests"):
            Path(name).symlink_to(ROOT / name)
        if path.suffix == ".md":
            return BLOCK.sub(lambda block: f"{block[1]}\n{_block(block[1], block[2])}", text)
        return _cells(text)


def _block(language: str, text: str) -> str:
    if language == "console":
        return "".join(_commands(text))
    named = FILE.match(text)
    if named is None:
        return ran(text)
    Path(named[1]).write_text(text, encoding="utf-8")
    return text


def _cells(text: str) -> str:
    before, *cells = CELL.split(text)
    marks = CELL.findall(text)
    return before + "".join(
        mark + ran(cell, before) for mark, cell in zip(marks, cells, strict=True)
    )


def ran(text: str, before: str = "") -> str:
    """Run a snippet; return it with its output, or as it is if it cannot run here.

    before: code to run first.
    """
    reason = missing(text)
    if reason:
        click.echo(f"not run: {reason}", err=True)
        return text
    Path("snippet.py").write_text(text, encoding="utf-8")  # Triton reads a kernel's source
    namespace: dict[str, Any] = {"__name__": "__main__"}
    lines, after = text.splitlines(), 0
    written: list[str] = []
    with warnings.catch_warnings(action="error"), np.printoptions(linewidth=WIDTH - 5):
        exec(before, namespace)
        for statement in ast.parse(text).body:
            printed = _printed(statement, namespace)
            end = statement.end_lineno or 0
            written += lines[after:end]
            after = end
            if printed or _prints(statement):
                while after < len(lines) and lines[after].startswith(OUTPUT):
                    after += 1
                written[-1:] = _beside(written[-1], printed)
    return "\n".join([*written, *lines[after:], ""])


def missing(text: str) -> str:
    """Return why a snippet cannot run here, "" if it can."""
    imported = set(re.findall(r"^import (\w+)", text, re.MULTILINE))
    absent = [name for name in NEEDED if name in imported and not importlib.util.find_spec(name)]
    if absent:
        return f"{absent[0]} is not installed"
    needs_gpu = imported & {"triton", "cupy"} or 'device="cuda"' in text
    return why_no_gpu() or "" if needs_gpu else ""


def _printed(statement: ast.stmt, namespace: dict[str, Any]) -> list[str]:
    """Run a statement; return the lines that it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(ast.Module([statement], []), "snippet.py", "exec"), namespace)
    return out.getvalue().splitlines()


def _prints(statement: ast.stmt) -> bool:
    calls = (node for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(isinstance(call.func, ast.Name) and call.func.id == "print" for call in calls)


def _beside(line: str, printed: list[str]) -> list[str]:
    """Return a statement's last line with its output as comments, beside or below."""
    bare = line.partition("  # ")[0]
    one = f"{bare}  # {' '.join(printed)}"
    if len(printed) == 1 and len(one) <= WIDTH:
        return [one]
    return [bare, *(f"{OUTPUT} {text}".rstrip() for text in printed)]


def _commands(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.startswith("$ "):
            yield f"{line}\n{_output(line[2:])}"


def _output(command: str) -> str:
    """Run a command; return its output for a terminal of 80 columns, without colours."""
    program = Path(".bin", "cupy-training-ops")
    if not program.exists():
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cupy_training_ops "$@"\n')
        program.chmod(0o755)
    paths = [str(program.parent.absolute()), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {**os.environ, "PATH": os.pathsep.join(paths), "PYTHONPATH": str(ROOT)}
    environment |= {"COLUMNS": "80", "NO_COLOR": "1"}
    result = subprocess.run(
        ["bash", "-c", command], env=environment, text=True, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return result.stdout


@click.command()
@click.option("--check", is_flag=True, help="Only name what is no longer true; write nothing.")
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
def main(check: bool, paths: tuple[Path, ...]) -> None:
    """Write what the snippets of PATHS print beside them; without PATHS those of all documents."""
    stale = []
    for path in [path.absolute() for path in paths] or documents():
        before, after = path.read_text(encoding="utf-8"), updated(path)
        if before != after:
            stale.append(path)
            click.echo(_difference(path, before, after))
        if not check:
            path.write_text(after, encoding="utf-8")
    if check and stale:
        raise click.ClickException("run scripts/snippets.py, and read what it changes")


def _difference(path: Path, before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
    return "\n".join([str(path), *list(lines)[2:]])


if __name__ == "__main__":
    main()
