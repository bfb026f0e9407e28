# SPDX-License-Identifier: MIT
"""Plant small faults into a family, in Python and in CUDA, and list those that no test notices.

    python scripts/mutants.py gist_narrow conv --count 12 --seed 7

Works on a copy of the checkout's files. Each fault is one operator, constant, bound or condition.
The tests of the family's folder, those elsewhere that name one of its operators, and then both of
the thorough tier have --seconds for it; they pass without a fault, which is seen first. What
survives needs a test, or changes nothing: say which. What ran out of time is listed apart. The exit
status is 1 where a fault survived.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from families import operators

from cupy_training_ops.registry import FAMILIES

ROOT = Path(__file__).resolve().parent.parent
NOT_BUILT = ("g++ failed:", "SyntaxError")  # no test is needed to notice these
PASSED, NO_TESTS = 0, 5  # what pytest exits with
UNHURRIED = 600  # seconds for the tests of a family without a fault
# By a source's time, in whole seconds, and its size Python tells whether it was compiled before.
SECONDS = itertools.count(1)


class Mutant(NamedTuple):
    """One fault: a piece of a file's text, and what stands in its place."""

    path: str  # below the checkout
    start: int
    old: str
    new: str

    def planted(self, text: str) -> str:
        """The file with the fault."""
        assert text[self.start :].startswith(self.old)
        return text[: self.start] + self.new + text[self.start + len(self.old) :]

    def label(self, text: str) -> str:
        """Place and change, for people."""
        line = text.count("\n", 0, self.start) + 1
        column = self.start - text.rfind("\n", 0, self.start)
        return f"{self.path}:{line}:{column}: {self.old.strip()} -> {self.new.strip()}"


# ---- which faults there are ----------------------------------------------------------------------

SWAPPED = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "+": "-",
    "-": "+",
    "*": "+",
    "/": "*",
    "//": "*",
    "%": "+",
    "<<": ">>",
    ">>": "<<",
    "&": "|",
    "|": "&",
    "&&": "||",
    "||": "&&",
    "and": "or",
    "or": "and",
    "is": "is not",
    "is not": "is",
    "+=": "-=",
    "*=": "+=",
}
# clang-format puts spaces around binary operators alone, and none inside a template's brackets.
CUDA_OPERATOR = re.compile(
    r"(?<=[\w)\]]) (<=|>=|==|!=|<<|>>|&&|\|\||\+=|\*=|[-+*/%<>&|]) (?=[\w(-])"
)
CUDA_CONSTANT = re.compile(r"(?<=[ (\[])\d+(?=[ ;)\],])")
CUDA_CONDITION = re.compile(r"(?<=\bif )\((?=[^\n]*\) )")
CUDA_IGNORED = re.compile(
    r"//[^\n]*|/\*.*?\*/|^[ \t]*#(?:\\\n|[^\n])*|\"[^\"\n]*\"|template <[^\n]*", re.M | re.S
)


def in_cuda(path: str, text: str) -> Iterator[Mutant]:
    """Faults of a CUDA source."""
    code = CUDA_IGNORED.sub(lambda found: re.sub(r"[^\n]", "\0", found[0]), text)
    for found in CUDA_OPERATOR.finditer(code):
        yield Mutant(path, found.start(1), found[1], SWAPPED[found[1]])
    for found in CUDA_CONSTANT.finditer(code):
        yield Mutant(path, found.start(), found[0], str(int(found[0]) + 1))
    for found in CUDA_CONDITION.finditer(code):
        yield Mutant(path, found.start(), "(", "(!")


def in_python(path: str, text: str) -> Iterator[Mutant]:
    """Faults of a Python module."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def at(line: int, column: int) -> int:
        return starts[line - 1] + column

    for node in computed(ast.parse(text)):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            start = at(node.lineno, node.col_offset)
            old = text[start : at(node.end_lineno or 0, node.end_col_offset or 0)]
            new = not node.value if isinstance(node.value, bool) else node.value + 1
            yield Mutant(path, start, old, str(new))
        for left, right in neighbours(node):
            start = at(left.end_lineno or 0, left.end_col_offset or 0)
            between = text[start : at(right.lineno, right.col_offset)]
            found = re.search(r"[^\s()]+(?: not)?", between)
            if found is not None and found[0] in SWAPPED:
                yield Mutant(path, start + found.start(), found[0], SWAPPED[found[0]])
        if isinstance(node, ast.If | ast.IfExp):
            yield Mutant(path, at(node.test.lineno, node.test.col_offset), "", "not ")


def computed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree but annotations, and `strict=` of zip, which computes nothing."""
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from computed(child)


def neighbours(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Operands that an operator stands between."""
    if isinstance(node, ast.BinOp):
        yield node.left, node.right
    elif isinstance(node, ast.Compare):
        yield from zip([node.left, *node.comparators], node.comparators, strict=False)
    elif isinstance(node, ast.BoolOp):
        yield from zip(node.values, node.values[1:], strict=False)


def files(root: Path, family: str) -> list[Path]:
    """The family's own sources."""
    python = (root / "cupy_training_ops" / "families" / family).glob("*.py")
    own = (path for path in python if path.name not in ("__init__.py", "samples.py"))
    return sorted([*(root / "cuda_src" / family).glob("*.cu*"), *own])


def mutants(root: Path, family: str, draw: random.Random) -> Iterator[Mutant]:
    """All faults of a family, Python's and CUDA's by turns, in an order that is drawn."""
    found: dict[bool, list[Mutant]] = {True: [], False: []}
    for path in files(root, family):
        text, python = path.read_text(encoding="utf-8"), path.suffix == ".py"
        make = in_python if python else in_cuda
        found[python].extend(make(str(path.relative_to(root)), text))
    for kind in found.values():
        draw.shuffle(kind)
    for pair in zip(found[False], found[True], strict=False):
        yield from pair


# ---- who notices ---------------------------------------------------------------------------------


# The emulator's C++ files, which nobody changes in a copy: what was built of them serves there.
LINKED = ("tests/emulator/include", "tests/emulator/runtime")


def copied(folder: Path) -> Path:
    """The checkout's files, tracked or new, in a folder of their own; LINKED are links.

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


def tests(root: Path, family: str, *, of_reference: bool) -> list[list[str]]:
    """The runs of tests that concern a fault, those first that are likely to notice it."""
    own = root / "tests" / "families" / family
    paths = sorted(own.glob("test_*.py"), key=lambda path: path.name != "test_reference.py")
    named = ["-k", " or ".join(operators([family]))]
    alone = [str(path.relative_to(root)) for path in (paths if of_reference else paths[::-1])]
    shared = ["tests/test_kernels.py", *named]
    elsewhere = ["tests", f"--ignore={own}", "--ignore=tests/test_kernels.py"]
    others = [*elsewhere, named[0], f"{named[1]} or {family}"]  # that it compiles is one of them
    first = [alone, shared] if of_reference else [shared, alone]
    return [*first, others, *([*chosen, "-m", "thorough"] for chosen in first)]


def verdict(root: Path, family: str, mutant: Mutant, seconds: float) -> str:
    """noticed (and by which test), survived, no time, or not built."""
    path = root / mutant.path
    text = path.read_text(encoding="utf-8")
    path.write_text(mutant.planted(text), encoding="utf-8")
    os.utime(path, (second := next(SECONDS), second))
    try:
        of_reference = path.name == "reference.py"
        return outcome(root, tests(root, family, of_reference=of_reference), seconds)
    finally:
        path.write_text(text, encoding="utf-8")


def outcome(root: Path, runs: list[list[str]], seconds: float) -> str:
    """What the first of these runs that is not passed says."""
    end = time.monotonic() + seconds
    for chosen in runs:
        try:
            ran = pytest_run(root, chosen, end - time.monotonic())
        except subprocess.TimeoutExpired:
            return "no time"
        if ran.returncode in (PASSED, NO_TESTS):
            continue
        if any(name in ran.stdout for name in NOT_BUILT):
            return "not built"
        found = re.search(r"^(?:FAILED|ERROR) ([^\s\[]+)", ran.stdout, re.M)
        by = found[1] if found else f"no test: pytest ended with {ran.returncode}"
        return f"noticed by {by}{', thorough' if 'thorough' in chosen else ''}"
    return "survived"


def pytest_run(root: Path, chosen: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """These tests of the copy, up to the first that fails."""
    environment = os.environ | {
        "PYTHONPATH": str(root),
        "CTO_EMULATOR_CACHE": str(root / ".kernels"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is compiled is most of a short session
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *chosen],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=max(seconds, 0),
    )


def main() -> int:
    """Print a line for each fault; 1 where one survived."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="+", choices=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--count", type=int, default=12, help="faults of each family")
    parser.add_argument("--seconds", type=float, default=60, help="for the tests of each fault")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    os.environ["CTO_SEED"] = str(given.seed)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        root = copied(Path(folder))
        verdicts = [verdict for family in given.families for verdict in judged(root, family, given)]
    kinds = [verdict.partition(" by ")[0] for verdict in verdicts]
    print(", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))))
    return int("survived" in kinds)


def judged(root: Path, family: str, given: argparse.Namespace) -> Iterator[str]:
    """The verdicts of a family's faults, each printed; those that do not build count as none."""
    left = given.count
    sound = outcome(root, tests(root, family, of_reference=False), UNHURRIED)  # builds most kernels
    if sound != "survived":
        sys.exit(f"{family} has no fault yet, and its tests say: {sound}")
    for mutant in mutants(root, family, random.Random(f"{given.seed} {family}")):
        if left == 0:
            return
        label = mutant.label((root / mutant.path).read_text(encoding="utf-8"))
        found = verdict(root, family, mutant, given.seconds)
        kind, _, by = found.partition(" by ")
        print(f"{kind:9} {label}{by and f'  ({by})'}", flush=True)
        if found != "not built":
            left -= 1
            yield found


if __name__ == "__main__":
    sys.exit(main())
