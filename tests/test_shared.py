# SPDX-License-Identifier: MIT
"""What is shared has several users: a plan, a rule or a header with one belongs to its family."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, CUDA = ROOT / "cupy_training_ops", ROOT / "cuda_src"
SHARED = ("algorithm", "core", "format", "math", "planning", "rules")  # folders
INCLUDE = re.compile(r'^\s*#include "([^"]+)"', re.MULTILINE)

Users = dict[Path, set[Path]]  # files by what they use


def imported(path: Path) -> Iterator[Path]:
    """The modules that a module of the package imports, or names of them."""
    package = ".".join(path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            for name in (base, *(f"{base}.{alias.name}" for alias in node.names)):
                yield ROOT.joinpath(*name.split(".")).with_suffix(".py")


def included(path: Path) -> Iterator[Path]:
    """The headers that a CUDA file includes."""
    return (CUDA / name for name in INCLUDE.findall(path.read_text(encoding="utf-8")))


@functools.cache
def users() -> Users:
    result: Users = defaultdict(set)
    uses = [(path, imported(path)) for path in PACKAGE.rglob("*.py")]
    uses += [(path, included(path)) for path in CUDA.rglob("*.cu*")]
    for user, used in uses:
        for path in used:
            result[path].add(user)
    return result


def folders(path: Path) -> set[Path]:
    """The folders outside of what is shared that use a file, also by way of what is."""
    results = set()
    for user in users()[path]:
        results |= folders(user) if is_shared(user) else {user.parent}
    return results


def is_shared(path: Path) -> bool:
    return path.parent.name in SHARED and path.stem != "__init__"


FILES = sorted(path for home in (PACKAGE, CUDA) for path in home.rglob("*.*") if is_shared(path))
FILES = [path for path in FILES if path.suffix in (".py", ".cuh")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_is_shared_has_several_users(path) -> None:
    results = {folder.name for folder in folders(path)}
    assert len(results) > 1, f"{path.relative_to(ROOT)} is used by {results or 'nobody'}"
