# SPDX-License-Identifier: MIT
"""Add the operators of docs/adding_an_operator.md to a copy of the checkout, as the page says.

    python scripts/added_operators.py

The words before each block say where its lines go:

    at the end of `path`             behind two blank lines where Python is defined, else one
    before `text` in `path`          before the first line that begins so
    in place of `text` in `path`     in place of it
    in `NAME` of `path`              in a table, whose alphabetical order is kept

Prints how many lines of how many files each section adds. Then it runs the commands that the page
has first, up to one that fails; with --no-compile none for NVRTC, whose part takes longest. The
copy is thrown away.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import click

from cupy_training_ops.device.compiler import nvrtc
from cupy_training_ops.errors import ProviderError

PAGE = ROOT / "docs" / "adding_an_operator.md"
# The emulator's C++ files, which nobody changes in a copy: what was built of them serves there.
LINKED = ("tests/emulator/include", "tests/emulator/runtime")
FENCE = re.compile(r"(.*?)^```(\w+)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
PLACE = re.compile(
    r"(?:at the (?P<end>end) of|(?P<before>before) `(?P<mark>[^`]+)` in"
    r"|(?P<instead>in place) of `(?P<old>[^`]+)` in|in `(?P<table>\w+)` of) `(?P<path>[^`]+)`:$",
    re.IGNORECASE,
)
# Behind the names of the page's commands are this Python, and a pytest that lists what passed.
COMMANDS = """
set -euo pipefail
python() { "$PYTHON" "$@"; }
pytest() { python -m pytest -q -rp -p no:cacheprovider "$@"; }
cupy-training-ops() { python -m cupy_training_ops "$@"; }
"""


class Block(NamedTuple):
    """Lines of a code block of the page, and the words before it: where they go (see PLACE)."""

    words: re.Match[str]
    lines: list[str]

    def put(self, text: str) -> tuple[str, int]:
        """Return (text of the file with the lines put in, number of lines added)."""
        lines = text.splitlines()
        if self.words["end"]:
            gap = 2 if re.match(r"class |def |@", self.lines[0]) else 1
            begin, end, new = len(lines), len(lines), [""] * gap + self.lines
        elif self.words["table"]:
            begin = end = row(lines, self.words["table"], self.lines[0])
            new = self.lines
        else:
            begin = end = line_of(lines, self.words["mark"] or self.words["old"])
            end += bool(self.words["instead"])
            new = self.lines if self.words["instead"] else self.lines + gap_before(lines, begin)
        return "\n".join([*lines[:begin], *new, *lines[end:], ""]), len(new)


def line_of(lines: list[str], mark: str) -> int:
    """Return the index of the first line that begins with `mark`, and not with a longer name."""
    results = (i for i, line in enumerate(lines) if re.match(rf"{re.escape(mark)}(?!\w)", line))
    number = next(results, None)
    if number is None:
        raise click.ClickException(f"{PAGE.name}: no line begins with {mark}")
    return number


def gap_before(lines: list[str], number: int) -> list[str]:
    """Return the blank lines before lines[number], as [""] * n."""
    gap: list[str] = []
    while not lines[number - len(gap) - 1]:
        gap.append("")
    return gap


def row(lines: list[str], table: str, new: str) -> int:
    """Return the index at which the line `new` goes into a table, a dictionary with sorted keys.

    That is before the first key that follows its own, or at the end.
    """
    number = line_of(lines, table) + 1
    key = '    "'
    while lines[number].startswith((" ", "#")):
        if new.startswith(key) and lines[number].startswith(key) and lines[number] > new:
            break
        number += 1
    return number


# ---- what the page says --------------------------------------------------------------------------


def sections(page: str) -> dict[str, list[Block]]:
    """Return the code blocks of each section that has some, by the section's title."""
    results = {}
    for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        title = part.partition("\n")[0]
        blocks = [
            block(words, text) for words, kind, text in FENCE.findall(part) if kind != "console"
        ]
        if blocks:
            results[title] = blocks
    return results


def block(before: str, text: str) -> Block:
    """Return the Block of a code block's text; before: the page's text ahead of it."""
    words = PLACE.search(before.strip().replace("\n", " "))
    if words is None:
        first = text.partition("\n")[0]
        raise click.ClickException(f"{PAGE.name}: no words say where `{first}` goes")
    return Block(words, text.splitlines())


def commands(page: str) -> Iterator[list[str]]:
    """Yield the commands of each `console` block, without "$ "."""
    for _, language, text in FENCE.findall(page):
        if language == "console":
            joined = text.replace("\\\n", " ")
            yield [line.removeprefix("$ ") for line in joined.splitlines()]


# ---- a copy of the checkout ----------------------------------------------------------------------


def copied(folder: Path) -> Path:
    """Copy the checkout's files, tracked or new, into a folder and return it; LINKED are links.

    Without git, which a source distribution has not: what .gitignore names is left out.
    """
    patterns = [".git", *(ROOT / ".gitignore").read_text(encoding="utf-8").split()]
    ignored = shutil.ignore_patterns(*(pattern.rstrip("/") for pattern in patterns))
    linked = [ROOT / name for name in LINKED]

    def left_out(at: str, names: list[str]) -> set[str]:
        return ignored(at, names) | {path.name for path in linked if path.parent == Path(at)}

    copy = shutil.copyfile  # whose times are new, for bytecode
    shutil.copytree(ROOT, folder, ignore=left_out, copy_function=copy, dirs_exist_ok=True)
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    return folder


def add(blocks: list[Block], root: Path) -> Counter[str]:
    """Put the blocks into the files of a checkout; return the number of lines added, by file."""
    written: Counter[str] = Counter()
    for each in blocks:
        path = root / each.words["path"]
        text, n = each.put(path.read_text(encoding="utf-8"))
        path.write_text(text, encoding="utf-8")
        written[each.words["path"]] += n
    return written


def run(command: str, root: Path) -> int:
    """Run a command in a checkout, with that checkout's package; return its exit status."""
    environment = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(root)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # most of its processes import the same
    click.echo(f"$ {command}")
    sys.stdout.flush()
    return subprocess.run(["bash", "-c", COMMANDS + command], cwd=root, env=environment).returncode


def compiles(command: str) -> bool:
    """Return True if a command compiles kernels by NVRTC."""
    return command.startswith("cupy-training-ops compile")


def possible(command: str) -> bool:
    """Return True if a command can run here: kernels need NVRTC, but no GPU."""
    if not compiles(command):
        return True
    try:
        nvrtc()
    except ProviderError as error:
        click.echo(f"not run: {command}: {error}")
        return False
    return True


@click.command()
@click.option("--compile/--no-compile", "is_compiled", default=True)
def main(is_compiled: bool) -> None:
    """Add the page's operators to a copy of the checkout and run its first commands there."""
    page = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="added-") as folder:
        root = copied(Path(folder))
        for title, blocks in sections(page).items():
            written = add(blocks, root)
            click.echo(f"{title}: {len(written)} files, {written.total()} lines")
        first, *_ = commands(page)
        chosen = (c for c in first if is_compiled or not compiles(c))
        for command in filter(possible, chosen):
            status = run(command, root)
            if status:
                sys.exit(status)


if __name__ == "__main__":
    main()
